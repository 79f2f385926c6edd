"""The experiments of lessons 08 and 10: small measurements of drafters whose bookkeeping would hide the idea."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor, nn
from tqdm import tqdm

from minispec.drafters import DFlashHead, Drafter, EagleHead, EarlyExit
from minispec.generate import generate
from minispec.load.model import Model
from minispec.measure import Timing, interleaved_times, weight_bytes
from minispec.output import Output
from minispec.sequence import Sequence
from minispec.speculate import speculate
from minispec.trace import Trace
from minispec_course import formulas

# ---- lesson 08 -----------------------------------------------------------------------------------------------------

QWEN3_8B = {  # tokens per pass at temperature 1: table 1 of the DSpark paper (Cheng et al., 2026, arXiv:2607.05147)
    "GSM8K (math)": {"EAGLE-3": 5.30, "DFlash": 5.33, "DSpark": 6.17},
    "HumanEval (code)": {"EAGLE-3": 4.33, "DFlash": 4.64, "DSpark": 5.52},
    "MT-Bench (chat)": {"EAGLE-3": 2.66, "DFlash": 3.11, "DSpark": 3.72},
}


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
        "small model": formulas.draft_cost(weight_bytes(draft), whole),
        "early exit": formulas.draft_cost(weight_bytes(EarlyExit(target).draft), whole),
        "int4 copy": formulas.draft_cost(formulas.quantized_bytes(parameters, bits=4, group=32), 2 * parameters),
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


# ---- lesson 10 -----------------------------------------------------------------------------------------------------


class Target:
    """Lesson 05's model with a cache, which also keeps the streams after some layers: [layers, cached tokens, d]."""

    def __init__(self, model: Model, prompt: list[int], layers: tuple[int, ...]):
        self.transformer, self.layers = model.transformer, layers
        self.cache, self.streams = model.transformer.new_cache(capacity=2048), None
        self.length, self.passes = 0, -1  # the prefill does not count
        self.read(prompt[:-1])

    @torch.inference_mode()
    def read(self, tokens: list[int]) -> Tensor:
        """Run the model on tokens that come after those in the cache: logits [len(tokens), V]."""
        out = self.transformer(torch.tensor([tokens]), self.cache, hidden_layers=self.layers)
        new = torch.cat([out.hidden[n] for n in self.layers])
        self.streams = new if self.streams is None else torch.cat([self.streams, new], 1)
        self.length, self.passes = self.length + len(tokens), self.passes + 1
        return out.logits[0]

    def rewind(self, length: int) -> None:
        self.length, self.streams = length, self.streams[:, :length]
        self.cache.rewind(length)


@torch.inference_mode()
def run_layer(head: EagleHead, features: Tensor, tokens: list[int], watch: list | None = None) -> Tensor:
    """EAGLE's layer over T entries, without a cache: f [T, d]. The last entry's attention is appended to `watch`."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))  # [1, H, T, D]
        future = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(future, -torch.inf).softmax(-1)
        if watch is not None:
            watch.append(weights[0, :, -1].mean(0))
        return weights @ v

    return head(torch.tensor([list(tokens)]), features[None], head.rope(torch.arange(len(tokens))[None]), attend)[0]


@torch.inference_mode()
def fill_blanks(target: Model, head: DFlashHead, streams: Tensor, last: list[int], mask: Tensor, positions) -> Tensor:
    """DFlash's one run over blocks that begin with the tokens `last`: logits of their blanks [A, B − 1, V]."""
    hidden = {n: stream[None] for n, stream in zip(head.hidden_layers, streams, strict=True)}
    context = head.context(hidden, torch.arange(streams.shape[1])[None])

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (torch.cat(pair, 2) for pair in zip(context[layer], (k, v), strict=True))
        return nn.functional.scaled_dot_product_attention(q, k, v, torch.as_tensor(mask), enable_gqa=True)

    embedded = target.transformer.embed_tokens(torch.tensor([last]))
    states = head(embedded, torch.as_tensor(positions)[None], attend)[0, :, 1:]  # [A, B − 1, d]
    return everywhere(head, states @ head.head_rows(target.transformer).T)


def everywhere(head: EagleHead | DFlashHead, logits: Tensor) -> Tensor:
    """Logits of the tokens that a head scores [..., v] as logits of the whole vocabulary [..., V]."""
    whole = logits.new_full((*logits.shape[:-1], head.config.vocab_size), -torch.inf)
    return whole.index_copy(-1, head.head_ids, logits)
