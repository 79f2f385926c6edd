"""rule="coupled": outputs follow the target's distribution, and speculation emits token for token what `generate` does.

Power. The first test counts N = 400,000 samples of one distribution and fails below p = 1e-4. A sampler that is δ away
in total variation has a noncentrality of at least 4 N δ²: 99 of 100 runs show δ = 0.006. The joint distribution of
whole outputs is tested as in test_speculate.py: 9,000 of them show δ = 0.06 (sequence_distribution.py).
"""

from random import Random

import pytest
import torch
from all_drafters import ALL, random_medusa
from loop_checks import (
    ONE,
    OTHER,
    PROMPTS,
    SAMPLED_PROMPT,
    SAMPLED_TOKENS,
    assert_same,
    countable_pair,
    expected_distribution,
    greedy_pair,
)
from scipy import stats
from sequence_distribution import DRAWS, P_VALUE, assert_follows, many_rows

import minispec as ms
from minispec.sampling import GOLDEN, coupled, gumbel, mixed, noise_of, uniform
from minispec.sequence import Sequence
from minispec_tools.cli import parser
from minispec_tools.serve import process

N = 400_000
P, Q = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05, 0.0], [0.2, 0.5, 0.05, 0.1, 0.1, 0.05]], dtype=torch.float64)
WAYS = (
    dict(temperature=1.0),
    dict(temperature=0.7, top_p=0.9),
    dict(temperature=1.0, frequency_penalty=0.3, repetition_penalty=1.2),
    dict(),
)


# ---- one token -----------------------------------------------------------------------------------------------------


def p_value(tokens: torch.Tensor) -> float:
    counts = torch.bincount(tokens, minlength=6)
    return float(stats.chisquare(counts[:5], P[:5] * N).pvalue) if counts[5] == 0 else 0.0


def test_a_coupled_token_follows_the_distribution():
    """Along one sequence, and at the same position of many; and the test would see δ = 0.006."""
    assert stats.ncx2.sf(stats.chi2.isf(P_VALUE, 4), 4, 4 * N * 0.006**2) > 0.99
    for noise in (torch.arange(N) * GOLDEN, mixed(torch.arange(N))):
        assert p_value(coupled(P, noise)) > P_VALUE
    wrong = P.log() + uniform(mixed(torch.arange(N))[:, None] + torch.arange(6) * GOLDEN)  # no Gumbel noise
    assert p_value(wrong.argmax(-1)) < P_VALUE


def test_similar_distributions_agree_as_often_as_the_paper_says():
    """With a probability of at least (1 − TV)/(1 + TV); five standard errors below it are 0.004."""
    noise, tv = torch.arange(N) * GOLDEN, float((P - Q).clamp(min=0).sum())
    agree = float((coupled(P, noise) == coupled(Q, noise)).double().mean())
    assert (1 - tv) / (1 + tv) - 0.004 < agree < 1 - tv


def test_noise_belongs_to_seed_position_and_token():
    """Whoever asks: for some tokens only, ahead of time, or after more of the sequence is known."""
    one, longer = (Sequence(0, [1] * n, noise=12345) for n in (5, 7))
    assert noise_of([one], torch.arange(4)).tolist()[0][2:] == noise_of([longer], torch.arange(2)).tolist()[0]
    assert noise_of([one], 2).tolist() == noise_of([longer]).tolist()
    some, g = torch.tensor([7, 3, 60]), gumbel(noise_of([one, longer]), torch.arange(64))
    assert torch.equal(gumbel(noise_of([one, longer]), some), g[:, some])
    assert g.unique().numel() == 128


# ---- outputs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", [ONE, OTHER])
def test_outputs_follow_the_targets_joint_distribution(options):
    with many_rows():
        prompts = [SAMPLED_PROMPT] * DRAWS
        outs = ms.generate(countable_pair()[0], prompts, SAMPLED_TOKENS, rule="coupled", **options)
    assert_follows([out.tokens for out in outs], expected_distribution(**options), f"generate, {options}")


def drafter_for(name: str) -> ms.drafters.Drafter:
    return ALL[name](*greedy_pair())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_speculation_emits_what_generate_emits(name):
    """Token for token, for any draft length, as a ragged batch and one prompt at a time."""
    target, accepted = greedy_pair()[0], 0
    for seed, way in enumerate(WAYS):
        how = dict(rule="coupled", seed=seed, **way)
        plain = ms.generate(target, list(PROMPTS), 24, **how)
        assert ms.speculate(target, PROMPTS[0], drafter_for(name), 3, 24, **how).tokens == plain[0].tokens
        for k in (1, 4) if seed else (3, "auto"):
            outs = ms.speculate(target, list(PROMPTS), drafter_for(name), k, 24, **how)
            for out, expected in zip(outs, plain, strict=True):
                assert_same(out, expected)
                accepted += sum(cycle.accepted for cycle in out.trace.cycles)
        greedy = ms.generate(target, list(PROMPTS), 24, **way)
        assert ([out.tokens for out in greedy] == [out.tokens for out in plain]) == (not way)
    assert accepted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "medusa", "eagle, tree", "mtp", "dflash", "dflash2, tree", "dspark, whole"])
def test_drafts_are_what_the_target_would_choose_under_its_noise(name, monkeypatch):
    """More of them are accepted than without; and all, if the draft model is the target."""
    target, how = greedy_pair()[0], dict(rule="coupled", temperature=1.0, seed=3, ignore_eos=True)

    def accepted(drafter: ms.drafters.Drafter) -> float:
        return ms.Trace.of(ms.speculate(target, list(PROMPTS), drafter, 4, 100, **how)).acceptance_rate

    assert name != "model" or accepted(ms.drafters.Model(target)) == 1
    by_noise = accepted(drafter_for(name))
    for module in ("medusa", "eagle", "dflash"):
        monkeypatch.setattr(f"minispec.drafters.{module}.with_noise", lambda _, logits, *rest: logits)
    monkeypatch.setattr("minispec.drafters.model.coupled", lambda p, *_: p.argmax(-1))
    assert by_noise > 1.5 * accepted(drafter_for(name))


# ---- engines -------------------------------------------------------------------------------------------------------


def check_engine(engine: ms.Engine, target: ms.Model, count: int = 20) -> dict:
    """Requests that are greedy, sampled, processed or want log-probabilities come one after another, drafted for as
    deep as chance has it: each is answered as by `generate` alone."""
    random, expected = Random(0), {}
    for seed in range(count):
        prompt, new = random.choices(range(64), k=random.randint(1, 20)), random.randint(4, 28)
        how = dict(seed=seed, logprobs=1 if seed % 5 == 3 else None, **WAYS[seed % len(WAYS)])
        id = engine.add(prompt, new, k=random.choice((None, None, 1, 5, 0)), **how)
        expected[id] = ms.generate(target, prompt, new, rule="coupled", **how)
        if seed > 5:
            engine.step()
    while engine.sequences:
        engine.step()
        engine.check_integrity()
    outs = engine.take()
    for id, out in expected.items():
        found = outs[id]
        assert (found.tokens, found.finish_reason, found.error) == (out.tokens, out.finish_reason, None)
    return engine.metrics()["totals"]


@pytest.mark.slow
@pytest.mark.parametrize("fast", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", [None, *ALL])
def test_an_engine_emits_what_generate_emits(name, fast):
    """Whatever else is in the batch, with preemptions, and by captured passes, too."""
    sizes = dict(num_blocks=26, block_size=4, max_num_seqs=6, max_num_batched_tokens=64, max_chunk=16)
    target = greedy_pair()[0]
    engine = ms.Engine(target, name and drafter_for(name), k=3, rule="coupled", fast=fast, **sizes)
    totals = check_engine(engine, target)
    assert totals["preemptions"] and bool(totals["accepted"]) == bool(name)
    assert name or not fast or engine.runner.launched


@pytest.mark.slow
def test_a_controller_changes_no_coupled_output():
    target, draft = greedy_pair()
    assert check_engine(ms.Engine(target, ms.drafters.Model(draft), rule="coupled"), target)["accepted"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "ngram", "medusa", "eagle, tree", "dflash, tree"])
def test_the_backend_of_a_gpu_emits_what_generate_emits(name, make_model):
    """By engines of its own, but for greedy requests."""
    target, draft = make_model(num_layers=3), make_model(num_layers=1)
    for way in WAYS:
        how = dict(rule="coupled", seed=1, **way)
        plain = ms.generate(target, list(PROMPTS), 20, **how)
        target.accelerate()
        try:
            assert [out.tokens for out in ms.generate(target, list(PROMPTS), 20, **how)] == [o.tokens for o in plain]
            outs = ms.speculate(target, list(PROMPTS), ALL[name](target, draft), 3, 20, **how)
            alone = ms.speculate(target, PROMPTS[0], ALL[name](target, draft), 3, 20, **how)
        finally:
            target.backend = None
        assert [out.tokens for out in outs] == [out.tokens for out in plain]
        assert alone.tokens == plain[0].tokens


def test_the_server_builds_such_an_engine(tiny, monkeypatch):
    """And choices of one request have noise of their own, as prompts of a batch have."""
    made = []
    monkeypatch.setattr(process, "load", lambda *_, **__: tiny)
    monkeypatch.setattr(process, "listen", lambda *_: None)
    monkeypatch.setattr(process, "make_app", lambda engine, *_: made.append(engine) or 1 / 0)
    options = "serve --model any --drafter ngram --rule coupled --no-warm-up --num-blocks 32".split()
    with pytest.raises(ZeroDivisionError):
        process.serve(parser().parse_args(options))
    params = ms.SamplingParams(temperature=1.0, seed=4, max_new_tokens=20)
    outs = made[0].generate([[1, 2]] * 3, params, progress=False)
    expected = ms.generate(tiny, [[1, 2]] * 3, params=params, rule="coupled")
    assert [out.tokens for out in outs] == [out.tokens for out in expected]
    assert len({tuple(out.tokens) for out in outs}) == 3


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:drafters.Synthetic")
def test_lossy_drafters_and_unknown_rules_are_refused(tiny):
    """Before any work, and with a rule that would do."""
    for lossy in (ms.drafters.Synthetic(0.5), ms.drafters.Medusa(tiny, random_medusa(tiny), lossless=False)):
        lossy.propose = None
        for call in (
            lambda d: ms.speculate(tiny, [1, 2], d, rule="coupled"),
            lambda d: ms.Engine(tiny, d, rule="coupled"),
        ):
            with pytest.raises(ValueError, match='lossy: use rule="token"'):
                call(lossy)
    with pytest.raises(ValueError, match="rule='couple'.*coupled"):
        ms.generate(tiny, [1, 2], rule="couple")


def test_logits_with_nan_are_refused(make_model):
    broken = make_model()
    broken.transformer.norm.weight.data[0] = torch.nan
    how = dict(temperature=1.0, rule="coupled")
    with pytest.raises(ValueError, match="NaN"):
        ms.generate(broken, [1, 2], **how)
    with pytest.raises(ValueError, match="NaN"):
        ms.speculate(broken, [1, 2, 1, 2], ms.drafters.NGram(), **how)
    for fast in (False, True):
        engine = ms.Engine(broken, ms.drafters.NGram(), rule="coupled", fast=fast)
        engine.add([1, 2, 1, 2], temperature=1.0)
        with pytest.raises(RuntimeError, match="NaN"):
            engine.run()
