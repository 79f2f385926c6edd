"""The cycle stepper: walk through a speculative run, one stage of one cycle at a time.

Everything shown comes from a real run. Tokens and verdicts are its Trace's; the lengths of both caches follow from the
Trace by the rules of speculate.py; the whole distributions, which a Trace does not keep, are computed again by one pass
of each model over the finished output. They are the same ones, because a forward pass over known tokens gives at every
position the distribution that the model had there while generating. The lengths of the passes in time are measured:
those of the run itself, or those recorded on an H200. cycle_picture.py puts it all on paper.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minispec.generate import Output
from minispec.load.handle import Model
from minispec.sampling import Sampling

from .cycle_parts import plain_step
from .cycle_picture import CyclePicture
from .cycle_steps import STAGES, THROWN, Clock, Step, chips, ordinal, recorded_clock, steps
from .panel import Panel, choice, player

__all__ = [
    "STAGES",
    "THROWN",
    "Clock",
    "Step",
    "chips",
    "cycle_stepper",
    "cycle_stepper_html",
    "distributions_along",
    "recorded_clock",
    "steps",
]


@torch.inference_mode()
def distributions_along(
    target: Model, draft: Model, prompt, output: Output, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """p and q at every position of the output, [n, V] each, by one pass of each model over prompt and output."""
    ids = target.encode(prompt)
    if not output.tokens or len(ids) != output.prompt_tokens:
        raise ValueError(
            f"prompt has {len(ids)} tokens and the output was generated after {output.prompt_tokens}: "
            "give the prompt that this output continues"
        )
    sampling, text = Sampling(temperature), [*ids, *output.tokens]

    def along(model: Model) -> Tensor:
        read = torch.tensor([text[:-1]], device=model.device)  # [1, T]
        return sampling.probs(model.transformer(read).logits[0, len(ids) - 1 :]).cpu()  # after each of these tokens

    return along(target), along(draft)


def cycle_stepper_html(
    output: Output,
    p: Tensor,
    q: Tensor,
    step: int,
    place: int = 0,
    decode: Callable[[list[int]], str] | None = None,
    prompt: str = "",
    clock: Clock | None = None,
) -> tuple[str, str]:
    """One step as SVG, and in words. `place` chooses whose distributions are shown: those of the cycle's 1st, 2nd, …
    token, or with 0 of the one the target chose itself. `prompt` is shown before the output."""
    walk = steps(output.trace)
    if not 0 <= step < len(walk):
        raise ValueError(f"step={step!r}: this run has the steps 0 … {len(walk) - 1}")
    return CyclePicture(output, p, q, decode, prompt, clock or recorded_clock()).at(walk[step], place)


def cycle_stepper(target: Model, draft: Model, prompt, output: Output, temperature: float = 0.0) -> Panel:
    """Play, or step with the arrow keys, through a run of `speculate(target, prompt, drafters.Model(draft), …)`.

    `temperature` is the run's. A greedy distribution has all its mass on one token, so at temperature 0 the
    picture shows those of temperature 1: the largest bar wins.
    """
    if output.trace is None or not output.trace.cycles:
        raise ValueError("output has no cycles to step through: give what speculate returned")
    p, q = distributions_along(target, draft, prompt, output, temperature or 1.0)
    longest = max(len(cycle.drafted) for cycle in output.trace.cycles)
    decode = target.decode if target.tokenizer else None
    asked = prompt if isinstance(prompt, str) else decode(list(prompt)) if decode else " ".join(map(str, prompt))
    play, place = player("step", len(steps(output.trace)) - 1, interval=900)
    looked_at = {"the target's own": 0} | {ordinal(i): i for i in range(1, longest + 2)}
    here = Clock("this run, timed here", plain_step(target, prompt, max(2, len(output.tokens)), dict(ignore_eos=True)))
    clocks = {"recorded on an H200": recorded_clock(), "this run": here}

    def draw(step: int, token: int, clock: Clock) -> tuple[str, str]:
        return cycle_stepper_html(output, p, q, step, token, decode, asked, clock)

    controls = {"step": place, "play": play, "token": choice("p and q of token", looked_at)}
    return Panel(draw, controls | {"clock": choice("times", clocks)})
