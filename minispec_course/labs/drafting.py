"""The experiments of lessons 08 and 10: small measurements of drafters whose bookkeeping would hide the idea."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor, nn
from tqdm import tqdm

from minispec import theory
from minispec.drafters import DFlash, DFlashHead, Drafter, EagleHead, EarlyExit
from minispec.generate import generate
from minispec.load.handle import Model
from minispec.measure import Timing, interleaved_times, weight_bytes
from minispec.output import Output
from minispec.sequence import Sequence
from minispec.speculate import speculate
from minispec.trace import Trace
from recipes import dflash as block_training
from recipes.eagle import unroll

# ---- lesson 08 -----------------------------------------------------------------------------------------------------


def compare(target: Model, drafters: Mapping[str, Drafter], prompts, k: int = 4, n: int = 30) -> dict[str, Trace]:
    """Greedy runs of several drafters, n tokens after each prompt: a line for each, and their traces."""
    plain, traces = [generate(target, prompt, n).tokens for prompt in prompts], {}
    for name, drafter in drafters.items():
        outs = [speculate(target, prompt, drafter, k, n) for prompt in prompts]
        traces[name] = trace = Trace.of(outs)
        alpha, tested = trace.acceptance_rate, sum(cycle.tested for cycle in trace.cycles)
        error, same = (alpha * (1 - alpha) / max(1, tested)) ** 0.5, [out.tokens for out in outs] == plain
        rates = f"{trace.tokens_per_cycle:.2f} tokens per pass, α = {alpha:.2f} ± {error:.2f}"
        print(f"{name:<12} same tokens: {same}   {rates}")
    return traces


def byte_costs(target: Model, draft: Model) -> dict[str, float]:
    """c of the drafters of lesson 08, as bytes for one draft token over the bytes for one pass of a 16-bit target."""
    whole, parameters = weight_bytes(target), weight_bytes(target) / target.dtype.itemsize
    models = {
        "small model": theory.draft_cost(weight_bytes(draft), whole),
        "early exit": theory.draft_cost(weight_bytes(EarlyExit(target).draft), whole),
        "int4 copy": theory.draft_cost(theory.quantized_bytes(parameters, bits=4, group=32), 2 * parameters),
    }
    return models | dict.fromkeys(("yours", "suffix", "lookahead"), 0.0)  # which read no weights of their own


@contextmanager
def counted(module: nn.Module) -> Iterator[list[int]]:
    """Count the forward passes of a module: `with counted(layer) as passes: …`, then len(passes)."""
    passes: list[int] = []
    hook = module.register_forward_hook(lambda *_: passes.append(1))
    try:
        yield passes
    finally:
        hook.remove()


def tokens_per_pass(target: Model, drafter: Drafter, prompts: list, k: int = 5, new_tokens: int = 32) -> float:
    """The mean acceptance length of greedy runs: accepted + 1, over all cycles of all prompts."""
    outs = speculate(target, list(prompts), drafter, k=k, max_new_tokens=new_tokens)
    cycles = [cycle for out in outs for cycle in out.trace.cycles]
    return sum(cycle.accepted + 1 for cycle in cycles) / len(cycles)


# ---- lesson 08: a race ----------------------------------------------------------------------------------------------

PLAIN = "plain"  # the runner without a drafter


def race(
    target: Model,
    drafters: Mapping[str, Drafter],
    prompts: Mapping[str, Sequence],
    k: int | str = 4,
    new_tokens: int = 64,
    repeat: int = 5,
    **sampling,
) -> dict:
    """Plain decoding and all drafters generate after the same prompts, in turns, so that a machine that slows down
    slows down all of them: results[kind of text][drafter or "plain"]."""
    entrants, results = {PLAIN: None, **drafters}, {}
    with tqdm(total=len(prompts) * (repeat + 1) * len(entrants), leave=False, disable=None) as bar:  # on terminals only
        for kind, of_it in prompts.items():
            laps: dict[str, list[list[Output]]] = {name: [] for name in entrants}  # by round, then by prompt
            calls = {
                name: partial(lap, laps[name], target, drafter, of_it, k, new_tokens, **sampling)
                for name, drafter in entrants.items()
            }
            bar.set_description(kind)
            interleaved_times(calls, repeat, 1, target.device, reset=bar.update)
            results[kind] = summarise({name: rounds[1:] for name, rounds in laps.items()})  # without the warm-up
    return {"target": target.label, "results": results}


def lap(laps: list, target: Model, drafter: Drafter | None, prompts: list, k: int | str, n: int, **options) -> None:
    """All prompts once; without a drafter, plainly. The outputs are appended to `laps`."""
    if drafter is None:
        laps.append([generate(target, prompt, n, **options) for prompt in prompts])
    else:
        laps.append([speculate(target, prompt, drafter, k, n, **options) for prompt in prompts])


def summarise(runs: Mapping[str, list[list[Output]]]) -> dict[str, dict]:
    """What one category's rounds say of each drafter. Speed-ups are those of single rounds, both runs moments apart."""
    seconds = {name: [_seconds_per_token(outs) for outs in rounds] for name, rounds in runs.items()}
    table = {}
    plain = seconds[PLAIN][-1]  # of the round that the rest is read off
    for name, rounds in runs.items():
        outs = rounds[-1]
        trace = Trace.of(outs) if name != PLAIN else None
        tokens = sum(len(out.tokens) for out in outs)
        parts = trace and [trace.seconds(part) / trace.target_passes / plain for part in ("draft", "verify")]
        ratios = [plain / own for plain, own in zip(seconds[PLAIN], seconds[name], strict=True)]
        table[name] = {
            "tokens": tokens,
            "passes": trace.target_passes if trace else tokens,
            "tokens_per_pass": tokens / trace.target_passes if trace else 1.0,
            "acceptance": trace.acceptance_rate if trace else None,
            "drafted_per_pass": trace.drafted_per_cycle if trace else 0.0,
            "draft_and_verify": parts if trace and sum(parts) else None,  # k·c and v; None: they are one launch
            "tokens_per_second": asdict(Timing.of(seconds[name]).rate(1)),
            "speedup": asdict(Timing.of(ratios)),
            "same_text": [out.tokens for out in outs] == [out.tokens for out in runs[PLAIN][-1]],
        }
    return table


def _seconds_per_token(outs: list[Output]) -> float:
    return sum(out.seconds for out in outs) / sum(len(out.tokens) for out in outs)


# ---- lesson 10: EAGLE ----------------------------------------------------------------------------------------------


@torch.no_grad()
def streams_of(target: Model, head: EagleHead | DFlashHead, tokens: list[int]) -> dict[int, Tensor]:
    """The residual streams that a head is given, of every token: layer → [1, T, d]."""
    return target.transformer.body(torch.tensor([list(tokens)]), hidden_layers=head.hidden_layers)[1]


@torch.no_grad()
def step_accuracy(
    target: Model, head: EagleHead, tokens: list[int], prompt_length: int, steps: int = 1, shift: int = 1
) -> list[float]:
    """How often step 1, 2, … of a draft from every position is the token that the target generated there.

    Later steps are given the target's tokens and the head's own features. `shift=0` pairs feature t with token t.
    """
    row, streams = torch.tensor([list(tokens)]), streams_of(target, head, tokens)
    starts = torch.arange(prompt_length, len(tokens) - steps - 1)
    found = []
    for j, feature in enumerate(unroll(head, row.roll(1 - shift, 1), list(streams.values()), steps)):
        guess = head.head_ids[head.logits(feature)[0, starts].argmax(-1)]
        found.append(float((guess == row[0, starts + 2 + j]).double().mean()))
    return found


# ---- lesson 10: DFlash ---------------------------------------------------------------------------------------------


@torch.no_grad()
def blocks_together(target: Model, head: DFlashHead, tokens: list[int], anchors: list[int]) -> Tensor:
    """Logits of the blanks of every anchor's block [A, B − 1, v], all in one pass, as in training."""
    row = torch.tensor([list(tokens)])
    streams = streams_of(target, head, tokens)
    states = block_training.read_blocks(head, target.transformer, row, streams, torch.tensor([list(anchors)]))
    return states[0, :, 1:] @ head.head_rows(target.transformer).T


@torch.no_grad()
def block_alone(target: Model, head: DFlashHead, tokens: list[int], anchor: int) -> Tensor:
    """The same for one anchor by the drafter itself [B − 1, v], which is given no token after the anchor."""
    streams = {n: h[0] for n, h in streams_of(target, head, tokens[:anchor]).items()}
    sequence = Sequence(0, list(tokens[: anchor + 1]), unseen=[streams])
    return DFlash(target, head).score([sequence])[0]
