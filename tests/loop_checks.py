"""What tests of the draft/verify loop share: pairs of models, and comparisons of whole runs with plain decoding."""

from functools import cache

import torch
from sequence_distribution import DRAWS, assert_follows, joint_distribution, many_rows
from tiny_models import blurred, random_model

import minispec as ms
from minispec.drafters import Drafter

PROMPT = [3, 15]  # of scripted models

# ---- sampled: the same distribution --------------------------------------------------------------------------------

SAMPLED_PROMPT, SAMPLED_TOKENS = (1, 2, 3, 1, 2), 4  # repeats itself, so that lookups find something
ONE = dict(temperature=1.0)
OTHER = dict(temperature=0.7, top_k=4, top_p=0.9)


@cache
def countable_pair() -> tuple[ms.Model, ms.Model]:
    """A target whose outputs can be counted, and its first layer as the draft: some drafts pass, some do not."""
    tiny = dict(vocab_size=5, hidden_size=16, intermediate_size=16, num_heads=2, num_kv_heads=1, head_dim=8)
    tiny |= dict(max_length=64, dtype=torch.float32)
    return random_model(num_layers=3, **tiny), random_model(num_layers=1, **tiny)


@cache
def expected_distribution(**options) -> dict:
    """The joint distribution of that target's outputs."""
    return joint_distribution(countable_pair()[0], SAMPLED_PROMPT, SAMPLED_TOKENS, ms.Sampling(**options))


def sample(drafter: Drafter, k: int | str, seed: int, draws: int = DRAWS, **options) -> list[list[int]]:
    """Speculative outputs of that target, as rows of one batch."""
    with many_rows(seed):
        outs = ms.speculate(countable_pair()[0], [SAMPLED_PROMPT] * draws, drafter, k, SAMPLED_TOKENS, **options)
        return [out.tokens for out in outs]


def check_distribution(drafter: Drafter, k: int | str = 3, seed: int = 0, draws: int = DRAWS, **options) -> None:
    """Sampled outputs follow the target's joint distribution."""
    outputs = sample(drafter, k, seed, draws, **options)
    assert_follows(outputs, expected_distribution(**options), f"{type(drafter).__name__}, {options}")


# ---- greedy: the same tokens ---------------------------------------------------------------------------------------

PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18, 28])


@cache
def greedy_pair() -> tuple[ms.Model, ms.Model]:
    """A target with end tokens, which two of the prompts come to, and a draft with noise on every weight."""
    return ms.Model("ends", random_model(num_layers=3).transformer, None, {42, 31}), blurred(num_layers=3)


def check_greedy(drafter: Drafter | None = None, ks: list[int | str] = (3, 1, 5, "auto"), count: int = 24) -> None:
    """Token for token the output of `generate`, as a ragged batch, and for the first k one prompt at a time too."""
    target, draft = greedy_pair()
    drafter = drafter or ms.drafters.Model(draft)
    plain = ms.generate(target, list(PROMPTS), count)
    for prompt, expected in zip(PROMPTS, plain, strict=True):
        assert_same(ms.speculate(target, prompt, drafter, ks[0], count), expected)
    for k in ks:
        for out, expected in zip(ms.speculate(target, list(PROMPTS), drafter, k, count), plain, strict=True):
            assert_same(out, expected)


def assert_same(out: ms.Output, expected: ms.Output) -> None:
    assert (out.tokens, out.text, out.finish_reason) == (expected.tokens, expected.text, expected.finish_reason)
    assert out.prompt_tokens == expected.prompt_tokens
    assert_trace_fits(out)


def assert_trace_fits(out: ms.Output) -> None:
    """The cycles of the trace emitted the output's tokens, and plain passes the rest."""
    emitted = plain = 0
    for cycle in out.trace.cycles:
        start = cycle.committed - out.prompt_tokens
        assert start >= emitted and cycle.tokens == out.tokens[start : start + cycle.kept]
        assert len(cycle.tokens) == len(cycle.kinds) == cycle.kept >= 1
        assert len(cycle.p) == len(cycle.q) == len(cycle.drafted)
        plain, emitted = plain + start - emitted, start + cycle.kept
    assert plain + len(out.tokens) - emitted == out.trace.plain  # a pass, and a token, without a draft
