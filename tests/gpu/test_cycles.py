"""Captured cycles (decode.py, heads.py, backend.py) are the eager loop's: the same tokens, and cycle by cycle the same
drafts, verdicts and probabilities, greedy and sampled. All in float64."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from all_drafters import random_dflash, random_eagle, random_medusa, random_mtp, random_pairs
from reference import PROMPTS, pair, slow
from tiny_models import random_model

import minispec as ms
from minispec.drafters import DRAFTERS, by_name
from minispec.drafters.eagle import Form
from minispec.gpu.backend import CapturedSpeculator
from minispec.gpu.decode import TreeSpeculator
from minispec.gpu.heads import on_device
from minispec.gpu.weights import FastTransformer
from minispec.recurrent import DeltaRule
from minispec.trace import Cycle
from minispec.tree import Draft

pytestmark = pytest.mark.slow
nightly = pytest.mark.nightly
D = ms.drafters
PUBLISHED = Form.eagle3(norm_before_residual=True)
EAGLE31 = Form.eagle3(stream_norm="each", norm_output=True)
GREEDY, WARM = dict(), dict(temperature=0.8, seed=3)
WAYS = (GREEDY, WARM, dict(temperature=1.3, top_p=0.8, seed=5), dict(temperature=1.0, top_k=9, min_p=0.02, seed=6))


@cache
def models(device="cpu") -> tuple[ms.Model, ms.Model]:
    """The tiny pair behind handles of its own: accelerating them changes no other test's."""
    target, draft = pair(device)
    return ms.Model("ends", target.transformer, None, target.end_tokens), slow(draft)


@cache
def micro(device="cpu") -> ms.Model:
    return ms.load("micro", device=device, dtype=torch.float64, fast=False)


@cache
def heads_on_the_device(device="cpu") -> dict[str, tuple[ms.Model, D.Drafter]]:
    """Drafters whose whole cycle is one launch, and their targets. Random heads are right now and then, and those that
    ship with micro are often right."""
    target, _ = models(device)
    eagle = lambda head, width=3, nodes=8: D.Eagle(target, head, width=width, nodes=nodes)  # noqa: E731
    random = {
        "medusa": D.Medusa(target, random_medusa(target), nodes=9),
        "medusa, chain": D.Medusa(target, random_medusa(target), tree="chain"),
        "eagle, chain": D.Eagle(target, random_eagle(target), tree=False),
        "mtp": D.MTP(target, random_mtp(target)),
        "dflash, chain": D.DFlash(target, random_dflash(target), tree=False),
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
        name: (micro(device), drafter) for name, drafter in shipped.items()
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
    medusa = random_medusa(target)
    return {
        "n-gram": D.NGram,
        "suffix": D.Suffix,
        "lookahead": lambda: D.Lookahead(target),
        "cascade": lambda: D.Cascade(D.NGram(), draft),
        "typical": lambda: D.Medusa(target, medusa, nodes=6, lossless=False),
        "ahead": lambda: D.Ahead(D.Model(draft), 5),
    }


def what(cycle: Cycle) -> tuple:
    """All of a cycle that is no float."""
    tree = Draft(cycle.drafted, None, cycle.parents).node_parents  # a chain may be given as a tree
    return cycle.drafted, tree, cycle.path, cycle.token, cycle.bonus, cycle.kept, cycle.committed, cycle.lossless


def same_cycles(out: ms.Output, expected: ms.Output, k: int, limit: int) -> int:
    """Cycle by cycle the same, as long as a whole draft has room before the end: after that a device drafts on, and
    what is past the end is dropped. Returns how many cycles that is."""
    compared = 0
    for cycle, eager in zip(out.trace.cycles, expected.trace.cycles, strict=False):
        if limit - (eager.committed - expected.prompt_tokens) - 1 < k:
            break
        assert what(cycle) == what(eager), f"cycle {compared}:\n{cycle}\n{eager}"
        for mine, theirs in ((cycle.p, eager.p), (cycle.q, eager.q)):
            assert torch.allclose(torch.tensor(mine), torch.tensor(theirs), atol=1e-6), f"cycle {compared}"
        compared += 1
    else:
        assert len(out.trace.cycles) == len(expected.trace.cycles)
    return compared


def both(target: ms.Model, prompt, drafter: D.Drafter, k, count: int, kind: type | None, other=None, **options):
    """The captured run and the eager one, by the same drafter or by another of its kind."""
    expected = ms.speculate(slow(target), prompt, other or drafter, k, count, **options)
    target.accelerate()
    right, asked = target.backend.speculator, []
    target.backend.speculator = lambda *rest: asked.append(right(*rest)) or asked[-1]
    try:
        out = ms.speculate(target, prompt, drafter, k, count, **options)
    finally:
        target.backend.speculator = right
    assert (kind is None and asked[0] is None) or type(asked[0]) is kind, f"{drafter!r} went through {asked[0]!r}"
    assert kind or target.backend.idle
    assert not target.backend.lease.lock.locked()
    return out, expected


# ---- a whole cycle is one launch -----------------------------------------------------------------------------------


CASES = [(3, way) for way in WAYS] + [(k, way) for k in (1, 5) for way in WAYS[:2]]
QUICK = {name: CASES[1:2] for name in ("Medusa", "Eagle", "DFlash")}
QUICK |= {name: [CASES[i] for i in (0, 1, 3, 7)] for name in ("medusa", "eagle", "dflash")}
HEADS = [*QUICK, "medusa, chain", "eagle, wide", "eagle, published", "eagle 3.1", "eagle, of its own shape"]
HEADS += ["dflash2", "dspark", "dflash, published", "dflash, short block", "eagle, chain", "mtp", "dflash, chain"]


def short(value) -> str:
    """Of a parameter: part of a test's id."""
    return value if isinstance(value, str) else f"{len(value)} ways"


@pytest.mark.parametrize(
    "name, cases", [*QUICK.items(), *(pytest.param(name, CASES, marks=nightly) for name in HEADS)], ids=short
)
def test_cycles_of_heads_are_the_eager_loop_s(name, cases, device, count=32):
    """Trees of every depth. Heads that are often right have whole paths accepted, and moved together."""
    (target, drafter), paths, compared = heads_on_the_device(device)[name], [], []
    for i, (k, options) in enumerate(cases):
        prompt = "Once upon a time" if target is micro(device) else PROMPTS[2 * (i % 2)]
        sampled = options and name in ("dspark", "eagle, chain", "mtp")
        kind = None if sampled else CapturedSpeculator
        out, expected = both(target, prompt, drafter, k, count, kind, **options)
        compared.append(len(expected.trace.cycles) if kind is None else same_cycles(out, expected, k, count))
        assert kind or out.tokens == expected.tokens
        paths += [cycle.path for cycle in out.trace.cycles]
        if not options:
            assert out.tokens == ms.generate(slow(target), prompt, count).tokens == expected.tokens
    assert min(compared) > 0 and sum(compared) >= 4 * len(cases)
    often = max(map(len, paths)) >= 2 and any(path != list(range(len(path))) for path in paths)
    assert often or target is not micro(device)


@pytest.mark.parametrize("name", ["medusa", *(pytest.param(name, marks=nightly) for name in ("eagle", "dflash"))])
def test_prompts_of_one_token_have_no_hidden_state(name, device, count=16):
    (target, _), drafter = models(device), heads_on_the_device(device)[name][1]
    for token in (9, 27):
        out, expected = both(target, [token], drafter, 3, count, CapturedSpeculator)
        assert out.tokens == expected.tokens == ms.generate(slow(target), [token], count).tokens
        again = [ms.speculate(target, [token], drafter, 3, count, **WARM).tokens for _ in range(2)]
        assert again[0] == again[1]


def test_two_sequences_at_once_are_each_alone():
    """Memory of two sequences, as a device would decode a batch: of each the cycles that it has alone, greedy."""
    target, _ = models()
    prompts = [[3, 1, 4, 1, 5], [2, 6, 5]]
    for name in ("medusa", "eagle", "dflash"):
        drafter, quick = heads_on_the_device()[name][1], FastTransformer(target.transformer, 2, 64)
        decoder = TreeSpeculator(quick, on_device(drafter)(drafter, quick, 3), 3)
        decoder.start(prompts)
        both = zip(*((decoder.ask(), decoder.answer())[1] for _ in range(6)), strict=True)  # six cycles of each row
        for prompt, cycles in zip(prompts, both, strict=True):
            out = ms.speculate(slow(target), prompt, drafter, 3, 40, ignore_eos=True)
            assert [what(c)[:5] for c in cycles] == [what(c)[:5] for c in out.trace.cycles[:6]], name


# ---- drafts of the host, and batches -------------------------------------------------------------------------------


HOSTED = "suffix", "cascade", "ahead"


@pytest.mark.parametrize(
    "name", ["n-gram", "lookahead", "typical", *(pytest.param(name, marks=nightly) for name in HOSTED)]
)
def test_cycles_of_drafts_of_the_host_are_the_eager_loop_s(name, device, count=20):
    """One prompt: all of the cycles, the last ones too."""
    target, _ = models(device)
    for options in WAYS[:2]:
        mine, theirs = hosted(device)[name](), hosted(device)[name]()
        for prompt in ([5, 6, 7] * 4 + [5, 6], [9]):  # the second finds what the first left in the drafter
            out, expected = both(target, prompt, mine, 3, count, None, theirs, **options)
            assert [what(c) for c in out.trace.cycles] == [what(c) for c in expected.trace.cycles]
            assert (out.tokens, out.finish_reason) == (expected.tokens, expected.finish_reason)
        if not options:
            assert out.tokens == ms.generate(slow(target), [9], count).tokens


def test_a_draft_length_that_changes_is_the_host_s(device):
    target, draft = models(device)
    out, _ = both(target, PROMPTS[2], D.Model(draft), "auto", 20, None)
    assert out.tokens == ms.generate(slow(target), PROMPTS[2], 20).tokens


def test_a_drafter_that_fails_leaves_the_model_s_memory_to_the_next_call(device):

    class Forgets(D.NGram):
        def forget(self, id):
            raise RuntimeError("no")

        def propose(self, sequences, k):
            raise KeyError("nor this")

    target, _ = models(device)
    target.accelerate()
    with pytest.raises((KeyError, RuntimeError)):
        ms.speculate(target, PROMPTS[0], Forgets(), 3, 4)
    for engine in target.backend.idle.values():
        engine.check_integrity()
        assert not engine.sequences and engine.pool.num_used == 0
    assert ms.speculate(target, PROMPTS[0], D.NGram(), 3, 4).tokens == ms.generate(slow(target), PROMPTS[0], 4).tokens


@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_other_rules_are_the_eager_loop_s(rule, device):
    target, draft = models(device)
    for way in WAYS[1:]:
        out, expected = both(target, PROMPTS[0], D.Model(draft), 3, 20, None, rule=rule, **way)
        assert [what(c) for c in out.trace.cycles] == [what(c) for c in expected.trace.cycles]
        assert rule == "block" or out.tokens == ms.generate(target, PROMPTS[0], 20, rule=rule, **way).tokens


BATCHES = "medusa", "dflash", "typical", "exit", "eagle, chain", "dflash, chain", *HOSTED


@pytest.mark.parametrize(
    "name", ["n-gram", "lookahead", "eagle", "model", *(pytest.param(name, marks=nightly) for name in BATCHES)]
)
def test_cycles_of_batches_are_the_eager_loop_s(name, device, count=20):
    """Prompts of different lengths that end at different times."""
    target, draft = models(device)
    heads = *QUICK, "eagle, chain", "dflash, chain"
    makers = hosted(device) | {head: lambda head=head: heads_on_the_device(device)[head][1] for head in heads}
    makers |= {"model": lambda: D.Model(draft), "exit": lambda: D.EarlyExit(target, 1)}
    for options in (GREEDY, WAYS[2]):
        outs, eager = both(target, list(PROMPTS), makers[name](), 3, count, None, **options)
        for out, other in zip(outs, eager, strict=True):
            assert [what(c) for c in out.trace.cycles] == [what(c) for c in other.trace.cycles]
            assert (out.tokens, out.finish_reason) == (other.tokens, other.finish_reason)
        if not options and name != "typical":
            expected = ms.generate(slow(target), list(PROMPTS), count)
            assert [out.tokens for out in outs] == [out.tokens for out in expected]


def test_batches_without_a_drafter_are_the_reference_s(device, count=20):
    """Also those that follow, of other sizes, and one prompt again."""
    target, _ = models(device)
    target.accelerate()
    for options in (GREEDY, WAYS[2]):
        found, expected = (ms.generate(model, list(PROMPTS), count, **options) for model in (target, slow(target)))
        assert [(o.tokens, o.finish_reason) for o in found] == [(o.tokens, o.finish_reason) for o in expected]
        assert len({len(out.tokens) for out in found}) > 1, "all end at once"
    for start in (1, 2):
        outs, expected = (ms.generate(model, list(PROMPTS[start:]), 12) for model in (target, slow(target)))
        assert [out.tokens for out in outs] == [out.tokens for out in expected]
    assert ms.generate(target, PROMPTS[0], 12).tokens == ms.generate(slow(target), PROMPTS[0], 12).tokens


def test_a_batch_reserves_what_it_needs(device):
    """Not what one prompt is given on a GPU, for each of them. Calls of about the same size share memory."""
    target, drafter, made = slow(models(device)[0]), D.NGram(), set()
    target.accelerate().room = 2048
    for count in (12, 20, 200):
        expected = [out.tokens for out in ms.generate(slow(target), list(PROMPTS), count)]
        assert [out.tokens for out in ms.generate(target, list(PROMPTS), count)] == expected
        assert [out.tokens for out in ms.speculate(target, list(PROMPTS), drafter, 3, count)] == expected
        memory, (engine,) = target.backend.memories[len(PROMPTS)], target.backend.idle.values()
        made |= {id(memory.cache), id(engine)}
        assert memory.capacity == 256 and engine.pool.max_tokens == 2048 and len(made) == 2


def test_engines_that_are_replaced_are_shut_down(device):
    """By one of another thread's call of the same kind, by a larger one, and by newer ones."""
    target, drafter = slow(models(device)[0]), D.NGram()
    backend, call = target.accelerate(), lambda count, k=3: ms.speculate(target, PROMPTS[0], drafter, k, count)
    call(8)
    ((key, first),) = backend.idle.items()
    backend.idle.clear()
    call(8)
    second = backend.idle[key]
    backend.keep(key, first)
    assert second.closed and not first.closed and list(backend.idle.values()) == [first]
    backend.room = 0
    first.pool.num_blocks = 1
    call(20)
    assert first.closed and not backend.idle[key].closed
    for k in range(4, 8):
        call(8, k)
    assert len(backend.idle) == 4 and key not in backend.idle


def test_a_captured_prompt_leaves_what_an_eager_one_does(device):
    """In memory, lengths and hidden states; padding leaves nothing."""
    target, _ = models(device)
    prompts = [[7, 1, 3, 3, 8, 2, 2, 9, 40, 41, 5, 6], [4, 4, 2], [9, 1, 1, 5, 60, 3, 3, 3, 3]]
    for layers in ((), (0, 2, 3)):
        mine, theirs = (FastTransformer(target.transformer, 2, 64) for _ in range(2))
        for first, second in ((0, 1), (1, 2), (2, 0)):  # longer, shorter and longer again
            two = [prompts[first], prompts[second]]
            counts = torch.tensor([len(prompt) for prompt in two], device=device)
            tokens = torch.zeros(2, int(counts.max()), dtype=torch.long, device=device)
            for row, prompt in enumerate(two):
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


# ---- every drafter that ships ----------------------------------------------------------------------------------------


@nightly
@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_greedy_outputs_are_a_cpu_s(name, device, count=48):
    """Of `generate` or `speculate`, one prompt or a batch, and of an engine."""
    prompts = ["Once upon a time", "One day, a small bird", "The fox", "A boy found a ball"]
    expected, target = cpu_outputs(tuple(prompts), count), accelerated_micro(device)
    if name is None:
        assert [ms.generate(target, prompt, count).tokens for prompt in prompts] == expected
        return
    assert ms.speculate(target, prompts[0], by_name(name, target), 3, count).tokens == expected[0]
    assert [out.tokens for out in ms.speculate(target, prompts, by_name(name, target), 3, count)] == expected
    engine = ms.Engine(target, by_name(name, target), num_blocks=128, max_num_seqs=4, k=3, fast=True)
    assert [o.tokens for o in engine.generate(prompts, max_new_tokens=count, progress=False)] == expected


@cache
def cpu_outputs(prompts: tuple[str, ...], count: int) -> list[list[int]]:
    return [out.tokens for out in ms.generate(micro("cpu"), list(prompts), count)]


@cache
def accelerated_micro(device: str) -> ms.Model:
    plain = micro(device)
    model = ms.Model(plain.name, plain.transformer, plain.tokenizer, plain.end_tokens)
    model.accelerate()
    return model


@pytest.mark.gpu
def test_greedy_outputs_of_a_hybrid_model_are_a_cpu_s(device, count=24):
    """No pass of a model with recurrent layers is captured, as a target or as a draft."""
    delta = DeltaRule((0, 1, 3), key_heads=2, value_heads=4, key_dim=8, value_dim=8)
    shape = dict(num_layers=4, delta=delta, qk_norm=True, out_gate=True, head_dim=16)
    usual, prompts = (
        random_model(num_layers=3, head_dim=16, device=device),
        [[1, 2, 3, 4, 5], [7, 8], [9, 3, 5, 1] * 12],
    )
    expected = [out.tokens for out in ms.generate(random_model(**shape), prompts, count)]
    target = random_model(**shape, device=device)
    assert [out.tokens for out in ms.generate(target, prompts, count)] == expected
    for drafter in (
        D.NGram(),
        D.EarlyExit(target, 3),
        D.Model(usual),
        D.Cascade(D.NGram(), usual),
        D.Quantized(target),
    ):
        assert [out.tokens for out in ms.speculate(target, prompts, drafter, 3, count)] == expected, drafter
        engine = ms.Engine(target, drafter, num_blocks=64, block_size=8, max_chunk=7)
        outs = engine.generate(prompts, max_new_tokens=count, progress=False)
        assert [out.tokens for out in outs] == expected, drafter
    expected = [out.tokens for out in ms.generate(usual, prompts, count)]
    engine = ms.Engine(usual, D.Model(target), num_blocks=64)
    assert [out.tokens for out in engine.generate(prompts, max_new_tokens=count, progress=False)] == expected
