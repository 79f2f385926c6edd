"""Checks that captured cycles (decode.py, heads.py, backend.py) are the eager loop's: same tokens, and cycle by cycle
the same drafts, verdicts and probabilities, greedy and sampled.

test_cycles.py runs them on the CPU, where a launch just does its work. On a GPU a launch replays a capture:

    PYTHONPATH=.:tests python3 tests/gpu/cycle_checks.py
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
import torch.nn.functional as F
from all_drafters import random_dflash, random_eagle, random_medusa, random_pairs
from fast_checks import PROMPTS, pair, run_on_the_gpu, slow

import minispec as ms
from minispec.drafters import DRAFTERS, by_name
from minispec.drafters.eagle import Form
from minispec.gpu.backend import CapturedSpeculator, Hosted
from minispec.gpu.weights import FastTransformer
from minispec.trace import Cycle
from minispec.tree import Draft

D = ms.drafters
PUBLISHED = Form.eagle3(norm_before_residual=True)
EAGLE31 = Form.eagle3(stream_norm="each", norm_output=True)
GREEDY, WARM = dict(), dict(temperature=0.8, seed=3)
WAYS = (GREEDY, WARM, dict(temperature=1.3, top_p=0.8, seed=5), dict(temperature=1.0, top_k=9, min_p=0.02, seed=6))


@cache
def models(device="cpu") -> tuple[ms.Model, ms.Model]:
    """The tiny pair, and handles of its own: an accelerated one is nobody else's."""
    target, draft = pair(device)
    return ms.Model("ends", target.transformer, None, target.end_tokens), slow(draft)


@cache
def micro(device="cpu") -> ms.Model:
    return ms.load("micro", device=device, dtype=torch.float64, fast=False)


@cache
def trees(device="cpu") -> dict[str, tuple[ms.Model, D.Drafter]]:
    """Drafters whose whole cycle is one launch, and their targets. Random heads are right now and then."""
    target, _ = models(device)
    eagle = lambda head, width=3, nodes=8: D.Eagle(target, head, width=width, nodes=nodes)  # noqa: E731
    random = {
        "medusa": D.Medusa(target, random_medusa(target), nodes=9),
        "medusa, chain": D.Medusa(target, random_medusa(target), tree="chain"),
        "eagle": eagle(random_eagle(target)),
        "eagle, wide": eagle(random_eagle(target, noise=0.1), 5, 3),
        "eagle, published": eagle(random_eagle(target, form=PUBLISHED)),
        "eagle 3.1": eagle(random_eagle(target, form=EAGLE31)),
        "eagle, of its own shape": eagle(of_its_own_shape(target)),
        "dflash": D.DFlash(target, random_dflash(target), nodes=8),
        "dflash2": D.DFlash2(target, random_pairs(target), nodes=8),
        "dspark": D.DSpark(target, random_pairs(target, D.DSparkHead), confidence=0),
        "dflash, published": D.DFlash(target, random_dflash(target, public=True), nodes=8),
        "dflash, short block": D.DFlash(target, random_dflash(target, block=2), nodes=5),
    }
    shipped = {name: getattr(D, name)(micro(device), nodes=24) for name in ("Medusa", "Eagle", "DFlash")}
    return {name: (target, drafter) for name, drafter in random.items()} | {
        name: (micro(device), drafter)
        for name, drafter in shipped.items()  # often right
    }


def of_its_own_shape(target: ms.Model) -> D.EagleHead:
    """A head with biases and more attention heads than its target, and with an embedding of its own."""
    heads = target.config.num_heads + 2
    config = replace(target.config, num_heads=heads, num_kv_heads=heads, qkv_bias=True, out_bias=True)
    ids, generator = torch.arange(min(48, target.config.vocab_size)), torch.Generator().manual_seed(0)
    head = D.EagleHead(target, ids, form=PUBLISHED, config=config).requires_grad_(False)
    for weight in head.parameters():
        weight.add_(0.2 * torch.randn(weight.shape, generator=generator).to(weight))
    head.embed = partial(F.embedding, weight=target.transformer.embed_tokens.weight.roll(1, 0))
    return head


@cache
def hosted(device="cpu") -> dict[str, Callable[[], D.Drafter]]:
    """How to make drafters that work on the host: chains, trees and scratch tokens."""
    target, draft = models(device)
    medusa, eagle, dflash = random_medusa(target), random_eagle(target), random_dflash(target)
    return {
        "n-gram": D.NGram,
        "suffix": D.Suffix,
        "lookahead": lambda: D.Lookahead(target),
        "cascade": lambda: D.Cascade(D.NGram(), draft),
        "typical": lambda: D.Medusa(target, medusa, nodes=6, lossless=False),
        "ahead": lambda: D.Ahead(D.Model(draft), 5),
        "eagle, chain": lambda: D.Eagle(target, eagle, tree=False),
        "dflash, chain": lambda: D.DFlash(target, dflash, tree=False),
    }


def what(cycle: Cycle) -> tuple:
    """All of a cycle that is no float."""
    tree = Draft(cycle.drafted, None, cycle.parents).node_parents  # a chain may be given as a tree
    return cycle.drafted, tree, cycle.path, cycle.token, cycle.bonus, cycle.kept, cycle.committed, cycle.lossless


def same_cycles(out: ms.Output, expected: ms.Output, k: int, limit: int) -> int:
    """Cycle by cycle the same, as long as a whole draft has room before the end: after that a device drafts on, and
    what is past the end is dropped. Returns how many cycles that is."""
    compared = 0
    for cycle, twin in zip(out.trace.cycles, expected.trace.cycles, strict=False):
        if limit - (twin.committed - expected.prompt_tokens) - 1 < k:
            break
        assert what(cycle) == what(twin), f"cycle {compared}:\n{cycle}\n{twin}"
        for mine, theirs in ((cycle.p, twin.p), (cycle.q, twin.q)):
            assert torch.allclose(torch.tensor(mine), torch.tensor(theirs), atol=1e-6), f"cycle {compared}"
        compared += 1
    else:
        assert len(out.trace.cycles) == len(expected.trace.cycles)
    return compared


def both(target: ms.Model, prompt, drafter: D.Drafter, k, count: int, kind: type, twin=None, **options) -> tuple:
    """The captured run and the eager one, by the same drafter or by its twin."""
    expected = ms.speculate(slow(target), prompt, twin or drafter, k, count, **options)
    target.accelerate()
    right, asked = target.backend.speculator, []
    target.backend.speculator = lambda *rest: asked.append(right(*rest)) or asked[-1]
    try:
        out = ms.speculate(target, prompt, drafter, k, count, **options)
    finally:
        target.backend.speculator = right
    assert type(asked[0]) is kind, f"{drafter!r} went through {asked[0]!r}"
    assert not target.backend.lease.lock.locked()
    return out, expected


# ---- a whole cycle is one launch -----------------------------------------------------------------------------------


CASES = [(3, way) for way in WAYS] + [(k, way) for k in (1, 5) for way in WAYS[:2]]


def check_trees(device="cpu", names: Sequence[str] | None = None, cases=CASES, count: int = 24) -> None:
    """Medusa's, EAGLE's and DFlash's trees, of every depth: tokens and cycles of the eager loop. Heads that are often
    right have whole paths accepted, and moved together."""
    for name in names or trees(device):
        (target, drafter), paths = trees(device)[name], []
        for i, (k, options) in enumerate(cases):
            prompt = "Once upon a time" if target is micro(device) else PROMPTS[2 * (i % 2)]
            kind = Hosted if options and not drafter.tree else CapturedSpeculator  # DSpark's samples
            out, expected = both(target, prompt, drafter, k, count, kind, **options)
            assert out.tokens == expected.tokens if kind is Hosted else same_cycles(out, expected, k, count) >= 4, name
            paths += [cycle.path for cycle in out.trace.cycles]
            if not options:
                assert out.tokens == ms.generate(slow(target), prompt, count).tokens == expected.tokens, name
        often = max(map(len, paths)) >= 2 and any(path != list(range(len(path))) for path in paths)
        assert often or target is not micro(device), name


def check_ends(device="cpu", names: Sequence[str] = ("medusa", "eagle", "dflash"), count: int = 16) -> None:
    """Prompts of one token, which have no hidden state."""
    target, _ = models(device)
    for name in names:
        drafter = trees(device)[name][1]
        for token in (9, 27):
            out, expected = both(target, [token], drafter, 3, count, CapturedSpeculator)
            assert out.tokens == expected.tokens == ms.generate(slow(target), [token], count).tokens
            again = [ms.speculate(target, [token], drafter, 3, count, **WARM).tokens for _ in range(2)]
            assert again[0] == again[1]


# ---- drafts of the host, and batches -------------------------------------------------------------------------------


def check_hosted(device="cpu", names: Sequence[str] | None = None, count: int = 20) -> None:
    """One prompt, drafts of every kind: all of the eager loop's cycles, the last ones too."""
    target, _ = models(device)
    for name in names or hosted(device):
        for i, options in enumerate(WAYS[:2]):
            mine, theirs = hosted(device)[name](), hosted(device)[name]()
            for prompt in ([5, 6, 7] * 4 + [5, 6], [9]):  # the second finds what the first left in the drafter
                out, expected = both(target, prompt, mine, 3, count, Hosted, theirs, **options)
                assert [what(c) for c in out.trace.cycles] == [what(c) for c in expected.trace.cycles], (name, i)
                assert (out.tokens, out.finish_reason) == (expected.tokens, expected.finish_reason)
            if not options:
                assert out.tokens == ms.generate(slow(target), [9], count).tokens
    out, _ = both(target, PROMPTS[2], D.Model(models(device)[1]), "auto", count, Hosted)
    assert out.tokens == ms.generate(slow(target), PROMPTS[2], count).tokens


def check_batches(device="cpu", names: Sequence[str] | None = None, count: int = 20) -> None:
    """Prompts of different lengths that end at different times, whoever drafts; and without a drafter."""
    target, draft = models(device)
    makers = dict(hosted(device)) | {
        name: lambda name=name: trees(device)[name][1] for name in ("medusa", "eagle", "dflash")
    }
    makers |= {"model": lambda: D.Model(draft), "exit": lambda: D.EarlyExit(target, 1)}
    for options in (GREEDY, WAYS[2]):
        expected = ms.generate(slow(target), list(PROMPTS), count, **options)
        target.accelerate()
        found = ms.generate(target, list(PROMPTS), count, **options)
        assert [(o.tokens, o.finish_reason) for o in found] == [(o.tokens, o.finish_reason) for o in expected]
        assert len({len(out.tokens) for out in found}) > 1, "all end at once"
        for name in names or makers:
            outs, eager = both(target, list(PROMPTS), makers[name](), 3, count, Hosted, **options)
            for out, other in zip(outs, eager, strict=True):
                assert [what(c) for c in out.trace.cycles] == [what(c) for c in other.trace.cycles], name
                assert (out.tokens, out.finish_reason) == (other.tokens, other.finish_reason), name
            if not options:
                assert [o.tokens for o in outs] == [o.tokens for o in expected] or name == "typical"
    for start in (1, 2):  # other batches, memory of other sizes, and one prompt again
        some = list(PROMPTS[start:])
        outs, expected = (ms.generate(model, some, 12) for model in (target, slow(target)))
        assert [out.tokens for out in outs] == [out.tokens for out in expected]
    assert ms.generate(target, PROMPTS[0], 12).tokens == ms.generate(slow(target), PROMPTS[0], 12).tokens


# ---- prompts -------------------------------------------------------------------------------------------------------


def check_prompts(device="cpu") -> None:
    """A captured prompt leaves memory, lengths and hidden states as an unrecorded one does; padding leaves nothing."""
    target, _ = models(device)
    prompts = [[7, 1, 3, 3, 8, 2, 2, 9, 40, 41, 5, 6], [4, 4, 2], [9, 1, 1, 5, 60, 3, 3, 3, 3]]
    for layers in ((), (0, 2, 3)):
        mine, theirs = (FastTransformer(target.transformer, 2, 64) for _ in range(2))
        for first, second in ((0, 1), (1, 2), (2, 0)):  # longer, shorter and longer again
            pair_of = [prompts[first], prompts[second]]
            counts = torch.tensor([len(prompt) for prompt in pair_of], device=device)
            tokens = torch.zeros(2, int(counts.max()), dtype=torch.long, device=device)
            for row, prompt in enumerate(pair_of):
                tokens[row, : len(prompt)] = torch.tensor(prompt)
            hidden, expected = mine.padded(16, tokens, counts, layers), theirs.prefill(tokens, counts, layers)
            assert torch.equal(mine.lengths, theirs.lengths) and hidden.keys() == expected.keys() == set(layers)
            for row, count in enumerate(counts.tolist()):
                for n in layers:
                    assert torch.allclose(hidden[n][row, :count], expected[n][row, :count], atol=1e-9)
                for memory, twin in ((mine.cache.keys, theirs.cache.keys), (mine.cache.values, theirs.cache.values)):
                    assert torch.allclose(memory[:, row, :, :count], twin[:, row, :, :count], atol=1e-9)
            new = torch.tensor([[5, 6], [7, 8]], device=device)
            assert torch.allclose(mine.step(new), theirs.step(new), atol=1e-9)


# ---- from the user's seat --------------------------------------------------------------------------------------------


def check_every_drafter(device="cuda", count: int = 48) -> None:
    """`generate`, `speculate` and an engine by the backend, with every drafter that ships: the CPU's greedy outputs."""
    texts = ["Once upon a time", "One day, a small bird", "The fox", "A boy found a ball"]
    expected = [out.tokens for out in ms.generate(micro("cpu"), texts, count)]
    target = ms.load("micro", device=device, dtype=torch.float64)
    assert [ms.generate(target, text, count).tokens for text in texts] == expected
    for name in DRAFTERS:
        assert ms.speculate(target, texts[0], by_name(name, target), 3, count).tokens == expected[0], name
        assert [out.tokens for out in ms.speculate(target, texts, by_name(name, target), 3, count)] == expected, name
        engine = ms.Engine(target, by_name(name, target), num_blocks=128, max_num_seqs=4, k=3)
        assert [o.tokens for o in engine.generate(texts, max_new_tokens=count, progress=False)] == expected, name


CHECKS: dict[str, Callable[[], None]] = {  # the quick ones, for the mutants too
    "shipped": lambda: check_trees(names=["Medusa", "Eagle", "DFlash"], cases=CASES[1:2]),
    "trees": lambda: check_trees(names=["medusa", "eagle", "dflash"], cases=[CASES[i] for i in (0, 1, 3, 7)]),
    "ends": lambda: check_ends(names=["medusa"]),
    "hosted": lambda: check_hosted(names=["n-gram", "lookahead", "typical"]),
    "batches": lambda: check_batches(names=["n-gram", "lookahead", "eagle", "model"]),
    "prompts": check_prompts,
}


def main(device: str = "cuda") -> None:
    checks = [check_trees, check_ends, check_hosted, check_batches]
    checks += [check_prompts, check_every_drafter]
    run_on_the_gpu({check.__name__[6:]: lambda check=check: check(device) for check in checks})


if __name__ == "__main__":
    main()
