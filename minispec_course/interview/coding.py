"""The coding round: ten functions (exercises/17_interview_day), and what an interviewer asks once they work."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

EXAMPLE = 2  # which case of an exercise is shown: they are listed smallest first
SOURCE = Path(__file__).resolve().parents[2] / "course/exercises/17_interview_day.py"

# exercise → (question, what a good answer contains)
TASKS: dict[str, tuple[tuple[str, str], ...]] = {
    "17.ragged_sampler": (
        (
            "What does it cost, and what would a loop over the batch cost on a GPU?",
            "It reads p and q once, O(B·k·V) bytes; a loop launches kernels per sequence and synchronises at every "
            "rejection.",
        ),
        (
            "How do you test that it is exact?",
            "Compute the output distribution over all random numbers for a toy vocabulary and compare it with p, no "
            "sampling.",
        ),
    ),
    "17.block_allocator": (
        (
            "What do append, fork and free cost?",
            "Append O(1) with a free list, fork and free O(blocks of the request), a copy one block.",
        ),
        (
            "Where would prefix caching come in?",
            "Hash full blocks with their parent's hash, keep free ones with a hash until they are needed, evict the "
            "oldest.",
        ),
    ),
    "17.tree_mask": (
        (
            "How large is the mask, and do you need the columns of the cache?",
            "n × (cached + n) bits; the cached part is all True, so kernels store only the n × n part.",
        ),
        (
            "Which position do siblings get?",
            "The same one, their depth: position ids follow the depth in the tree, not the slot.",
        ),
    ),
    "17.online_softmax": (
        (
            "How do you combine parts that different thread blocks computed?",
            "Each returns maximum, sum and output; rescale by exp of its maximum minus the largest, add sums and "
            "outputs.",
        ),
        (
            "What memory does it save against plain attention?",
            "The n × n scores are never stored: memory O(n·d) instead of O(n²), and the scores stay on the chip.",
        ),
    ),
    "17.token_budget": (
        (
            "What would you do when memory runs out instead of budget?",
            "Preempt the latest request: free its blocks and recompute later, or swap its cache to the host.",
        ),
        (
            "How do you choose the budget?",
            "From the target for time per token: the largest chunk for which a mixed step still meets it, measured.",
        ),
    ),
    "17.ngram_proposer": (
        (
            "What does it cost per token and in memory?",
            "One hash of n tokens and one dictionary entry per token, O(L) memory per request; freed with it.",
        ),
        (
            "When does it hurt?",
            "When matches are spurious: rejected draft tokens cost verification at large batch; demand longer matches or "
            "adapt k.",
        ),
    ),
    "17.stop_strings": (
        (
            "What does it do to latency?",
            "At most the longest stop string minus one character is held, so the user sees a short delay at near "
            "matches.",
        ),
        (
            "How do stop strings interact with speculation?",
            "A cycle emits several tokens, so cut inside them and rewind: tokens after the stop must not count or "
            "be cached.",
        ),
    ),
    "17.shifted_eagle": (
        (
            "Which measurement would have shown the bug?",
            "Acceptance by position at inference against training accuracy: the first is near zero and the second "
            "excellent.",
        ),
        (
            "Why does acceptance fall with depth even when this is right?",
            "Later steps run on the head's own hidden states, not the target's; train with its own outputs to close "
            "the gap.",
        ),
    ),
    "17.kv_size": (
        (
            "How many 8,000-token requests fit beside 16 GB of weights in 80 GB at 128 KiB per token?",
            "64 GB over 1.05 GB each, about 61, less activations and fragmentation.",
        ),
        (
            "What does tensor parallelism do to an MLA cache?",
            "The latent is not divided by heads, so every rank keeps all of it; use data-parallel attention instead.",
        ),
    ),
    "17.top_p": (
        (
            "What does it cost compared with a sort?",
            "A selection of k from V is O(V) per attempt, and attempts double, against O(V log V) for a sort.",
        ),
        (
            "What happens at temperature 2, when the distribution is flat?",
            "Many doublings, so it degrades to a sort; a threshold search by bisection on the probabilities bounds it.",
        ),
    ),
}


def title_of(id: str) -> str:
    from ..exercises.exercise import find

    return find(id).title


def minutes_of(id: str) -> int:
    from ..exercises.exercise import find

    return find(id).minutes


@cache
def _answer_cell(id: str) -> str:
    """The cell of the exercises' source that holds the function."""
    found = re.split(r"(?m)^# %%", SOURCE.read_text(encoding="utf-8"))
    [cell] = [cell for cell in found if f'exercise="{id}"' in cell.partition("\n")[0] and "### BEGIN SOLUTION" in cell]
    return cell.partition("\n")[2].strip()


@cache
def task_of(id: str) -> str:
    """Signature, docstring and an example: what is to be written, in a few lines."""
    from ..exercises.exercise import find

    exercise = find(id)
    head = re.split(r"\n *### BEGIN SOLUTION", _answer_cell(id))[0]
    case = exercise.cases[min(EXAMPLE, len(exercise.cases) - 1)]
    try:
        found = exercise.reference(*case.values())
    except TypeError:  # it is given a function as well
        found = exercise.observe(exercise.reference, **case)
    given = [f"    {name} = {_written(value)}" for name, value in case.items()]
    return "\n".join([head, "", "For example, with", *given, f"it returns {_written(found)}"])


def _written(value) -> str:
    """A value as one would write it down: tensors as lists, with few digits."""
    from ..exercises.show import show

    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_written, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(key)}: {_written(item)}" for key, item in value.items()) + "}"
    return repr(value) if isinstance(value, str) else show(value)


def write_notebook(id: str, seed: int, folder: Path | None = None) -> Path:
    """A fresh notebook with this one exercise, no hints, and a clock that its reader starts by opening it."""
    from ..check import exam

    folder, number = folder or exam.FOLDER, 1
    while (file := folder / f"mock-{number}.ipynb").exists():
        number += 1
    folder.mkdir(parents=True, exist_ok=True)
    return exam.start(minutes_of(id), seed, [id], out=file)


def is_untouched(file: Path, id: str) -> bool:
    """Whether the notebook, as it was last saved, still holds the stub."""
    from ..build.cells import stub

    try:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        own = [cell for cell in cells if cell["metadata"].get("minispec") == {"exercise": id, "role": "answer"}]
        return [_plain("".join(cell["source"])) for cell in own] == [_plain(stub(_answer_cell(id), id))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False  # what it is, its check will say


def _plain(source: str) -> str:
    return " ".join(source.split())


def check_file(file: Path, id: str) -> tuple[str, str]:
    """Run a notebook as it was last saved: the outcome of its check, and what it said. An interview has no hints."""
    from ..check.terminal import check_notebook

    try:
        found = {result.id: result for result in check_notebook(file)}
    except (OSError, ValueError) as error:  # gone, not a notebook any more, a loop that never ends, a dead kernel
        return "wrong", str(error)
    if id not in found:
        return "not attempted", f"{id}: its check is missing"
    return found[id].outcome, re.sub(r"\s*Stuck\? hint\([^)]*\)", "", found[id].text)
