"""Block verification: exact distributions, exact lengths, batches, and the loop and the engine that use it."""

import pytest
import torch
from block_verify_checks import ALMOST_ONE, CHECKS, check_batch
from loop_checks import greedy_pair

import minispec as ms
from minispec import verify


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_block_verification(check):
    CHECKS[check]()


@pytest.mark.slow
def test_a_batch_is_row_by_row():
    check_batch()


def test_token_by_token_is_lossless_too_but_accepts_less():
    CHECKS["cycles"](verify.chain)
    with pytest.raises(AssertionError):
        CHECKS["length"](verify.chain)


def test_edges():
    p = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    for q in (None, p[:0]):
        assert verify.block(p, q, [], [0.5]) == ([], 1)  # nothing drafted: plain decoding
    nothing, u = torch.zeros(2, 0, dtype=torch.long), torch.rand(2, 1, dtype=torch.float64)
    accepted, token = verify.chain_batch(p[None].expand(2, -1, -1), None, nothing, None, u, rule="block")
    assert accepted.tolist() == [0, 0] and token.tolist() == [1, 1]
    same = torch.full((4, 3), 1 / 3)
    for u in (0.0, 0.5, ALMOST_ONE):  # p = q: everything is accepted, whatever the coins say
        assert verify.block(same, same[:3], [0, 1, 2], [u] * 4).accepted == 3


@pytest.mark.parametrize("rule", verify.RULES)
def test_loop_and_engine_really_use_the_rule_they_are_given(rule, monkeypatch):
    """Both rules are lossless, so no distribution would show it."""
    calls = {"token": 0, "block": 0}
    real = verify.chain_batch

    def counting(*args, rule):
        calls[rule] += 1
        return real(*args, rule=rule)

    monkeypatch.setattr(verify, "chain_batch", counting)
    target, draft = greedy_pair()
    out = ms.speculate(target, [1, 2], ms.drafters.Model(draft), 3, 8, rule=rule, temperature=1.0, seed=0)
    assert calls == dict.fromkeys(calls, 0) | {rule: len(out.trace.cycles)}
    engine = ms.Engine(target, ms.drafters.Model(draft), k=3, rule=rule)
    engine.generate([[1, 2]], ms.SamplingParams(max_new_tokens=8, temperature=1.0, seed=0), progress=False)
    assert calls[rule] > len(out.trace.cycles) and sum(calls.values()) == calls[rule]


def test_trees_and_lossy_drafters_and_unknown_rules_are_refused():
    target, draft = greedy_pair()
    chain = ms.drafters.Model(draft)
    lossy = ms.drafters.Model(draft)
    lossy.lossless = False
    trees = ms.drafters.Model(draft)
    trees.max_tree_nodes = lambda k: k + 2
    for drafter, rule, words in ((lossy, "block", "trees"), (trees, "block", "trees"), (chain, "blocks", "rule=")):
        with pytest.raises(ValueError, match=words):
            ms.speculate(target, [1, 2], drafter, 2, 4, rule=rule)
        with pytest.raises(ValueError, match=words):
            ms.Engine(target, drafter, k=2, rule=rule)
    tree = ms.drafters.Draft([1, 2], None, [-1, -1])  # also from a drafter that had not said so
    with pytest.raises(ValueError, match="trees"):
        verify.judge(torch.zeros(1, 3, 64), [None], [tree], rule="block")
