"""Right answers in another style than ours: in float32, with NumPy, with lists, lazily, in another order. A check that
refuses one of these is wrong, not the answer; those at the top were refused once."""

import operator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exercise_notebooks import SOURCES
from torch import Tensor

from minispec_course.check.check import RIGHT, WRONG, judge
from minispec_course.exercises.exercise import everything, find

ANSWERS = []


def right(id: str):
    return lambda answer: ANSWERS.append(pytest.param(id, answer, id=f"{id}-{answer.__name__}")) or answer


@right("02.cached_attention")
def softmax_in_single(q, keys, values, length):
    grouped = q.view(len(keys), -1, q.shape[-1])  # [Hkv, G, D]
    scores = grouped @ keys[:, :length].transpose(1, 2) / q.shape[-1] ** 0.5
    return (scores.softmax(-1, dtype=torch.float32).to(scores.dtype) @ values[:, :length]).reshape(q.shape)


@right("03.slot")
def lazily(table, block_size, start, stop):
    for position in range(start, stop):
        yield table[position // block_size] * block_size + position % block_size


@right("09.medusa_head")
def in_single(h, t, weight, bias, lm_head, head_ids):
    z = h.float() + F.silu(torch.einsum("kij,j->ki", weight.float(), h.float()) + bias.float())
    logits = z @ lm_head.float()[head_ids].T
    return logits.numpy(), head_ids[logits.argmax(1)], range(t + 2, t + 2 + len(weight))


@right("11.batch_k")
def climbs(alphas, longest, read, compute, draft):
    """Until it gets slower. Σ E[N] is concave in k and the seconds are convex, so their ratio has one peak."""

    def speed(k):
        return sum(sum(a**i for i in range(k + 1)) for a in alphas) / (
            k * draft + max(read, len(alphas) * (k + 1) * compute)
        )

    k = 0
    while k < longest and speed(k + 1) > speed(k):
        k += 1
    return k


@right("16.column_row")
def every_nth_column(x, up, down, bias, ranks, all_reduce):
    return all_reduce([(x @ up[:, r::ranks]).clamp(min=0) @ down[r::ranks] for r in range(ranks)]) + bias


@pytest.mark.parametrize(("id", "answer"), ANSWERS)
def test_a_right_answer_in_another_style_is_right(id, answer):
    judgement = judge(find(id), answer)
    assert judgement.outcome == RIGHT, judgement.text


def test_a_precision_that_is_too_low_is_named():
    for dtype in (torch.float16, torch.bfloat16):
        low = judge(find("08.early_exit"), lambda *args, d=dtype: in_low_precision(*args, dtype=d))
        assert low.outcome == WRONG and low.mutant is None and "float16" in low.text


def in_low_precision(streams, n, norm_weight, eps, head, dtype):
    return F.rms_norm(streams[n].to(dtype), head.shape[1:], norm_weight.to(dtype), eps) @ head.to(dtype).T


# ---- our own answers to all exercises, in other forms ---------------------------------------------------------------


def throughout(change):
    """A function of what a reference returns, or is given: `change` made to all parts of it."""

    def changed(value):
        if type(value) in (list, tuple):
            parts = list(map(changed, value))  # a list without such parts stays what it is: an answer may change it
            value = value if all(map(operator.is_, parts, value)) else type(value)(parts)
        return change(value)

    return changed


def is_number(x) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def numbers(x) -> bool:
    return isinstance(x, list) and len(x) > 0 and all(map(is_number, x))


FORMS = {
    "lists": lambda x: x.tolist() if isinstance(x, Tensor) else list(x) if isinstance(x, tuple) else x,
    "tuples": lambda x: tuple(x) if isinstance(x, list) else x,
    "arrays": lambda x: x.numpy() if isinstance(x, Tensor) else np.array(x) if numbers(x) else x,
    "NumPy's numbers": lambda x: np.array(x)[()] if isinstance(x, (bool, int, float)) else x,
    "tensors": lambda x: torch.tensor(x) if numbers(x) else x,
    "numbers as tensors": lambda x: torch.tensor(x) if is_number(x) else x,
}


def single(x):
    return x.float() if isinstance(x, Tensor) and x.dtype == torch.float64 else np.float32(x) if type(x) is float else x


QUICK = {"08"}


@pytest.mark.parametrize("number", [n if n in QUICK else pytest.param(n, marks=pytest.mark.nightly) for n in SOURCES])
def test_every_reference_is_right_in_every_form(number: str):
    odd = []
    for id, exercise in everything().items():
        if id.split(".")[0] == number:
            ours = exercise.reference
            answers = {name: lambda *args, f=f, ours=ours: throughout(f)(ours(*args)) for name, f in FORMS.items()}
            if id != "01.bandwidth":  # which asks how many bytes its argument has
                answers["float32"] = lambda *args, ours=ours: ours(*map(throughout(single), args))
            odd += [
                f"{id}, {name}: {found.text}"
                for name, f in answers.items()
                if (found := judge(exercise, f)).outcome != RIGHT
            ]
    assert not odd, "\n".join(odd)
