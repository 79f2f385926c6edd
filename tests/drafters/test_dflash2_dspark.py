"""DFlash 2 and DSpark: paths, distributions and lengths are what the definitions say, and wrong variants are caught."""

import pytest
import torch
from all_drafters import random_dflash, random_pairs
from by_hand import paths
from test_dflash import by_hand, whole

import minispec as ms
from minispec.drafters import DFlash2, DFlash2Head, DSpark, DSparkHead
from minispec.drafters.dspark import shortened
from minispec_tools.train import pairs as training
from minispec_tools.train.corpus import Corpus
from minispec_tools.train.lessons import Lessons

TEXTS = [[7], [7, 1], [3, 1, 4, 1, 5, 9, 2, 6]]


@pytest.fixture(scope="module")
def two(tiny) -> DFlash2Head:
    return random_pairs(tiny)


@pytest.fixture(scope="module")
def spark(tiny) -> DSparkHead:
    return random_pairs(tiny, DSparkHead, seed=3)


def code(head, target, a: int) -> torch.Tensor:
    """A(a), from the definition."""
    row = target.transformer.embed_tokens.weight[a]
    x = head.pairs.up.weight @ (row / row.square().mean().add(torch.finfo(row.dtype).eps).sqrt())
    return head.pairs.down.weight @ (x * x.sigmoid())


def states_of(drafter, target, text, row=0) -> torch.Tensor:
    return drafter.states([whole(target, drafter.heads, text, row)])[0]  # [B − 1, d]


def path_probabilities(target, head: DFlash2Head, text: list[int]) -> dict[tuple[int, ...], float]:
    """Π q(d_j | d_{j−1}) of every path through the 16 candidates, one score at a time."""
    logits, h = by_hand(target, head, text), states_of(DFlash2(target, head), target, text)
    found, rows = {(): 1.0}, target.transformer.lm_head.weight
    for j, z in enumerate(logits):
        best = z.topk(16).indices.tolist()  # the first 64 tokens are scored: an index is a token
        after = {b: head.pairs.second.weight @ rows[b] for b in best}
        for path in [path for path in found if len(path) == j]:
            context = code(head, target, (path or text)[-1]) * (head.pairs.gate.weight @ h[j])
            scores = z.clone()
            for b in best:
                scores[b] += context @ after[b]
            q = scores.softmax(0)
            found |= {(*path, b): found[path] * float(q[b]) for b in best}
    return {path: p for path, p in found.items() if path}


def check_tree(target, head: DFlash2Head, drafter=DFlash2, nodes: int = 12) -> None:
    """The likeliest paths, and the likeliest token after the one before."""
    for text in TEXTS:
        expected = path_probabilities(target, head, text)
        likeliest = sorted(expected, key=expected.get, reverse=True)[:nodes]
        (draft,) = drafter(target, head, nodes=nodes).propose([whole(target, head, text)], 3)
        assert set(paths(draft)) == set(likeliest) and len(draft.tokens) == len(likeliest)
        (chain,) = drafter(target, head, tree=False).propose([whole(target, head, text)], 3)
        for j, token in enumerate(chain.tokens):
            assert token == max(range(64), key=lambda b: expected.get((*chain.tokens[:j], b), 0))
        assert len(chain.tokens) == 3 and chain.probs is None and chain.parents is None


def check_chain(target, head: DSparkHead, drafter=DSpark, draws: int = 40) -> None:
    """Every token's q, and where a draft ends: a function of the tokens before."""
    confidence, temperature, lengths, ended = 0.65, 0.7, set(), {}
    for text in TEXTS:
        logits = by_hand(target, head, text)
        h, rows = states_of(DSpark(target, head), target, text), target.transformer.lm_head.weight[:64]
        for seed in range(draws):
            one = whole(target, head, text, sampling=ms.Sampling(temperature), seed=seed)
            (draft,) = drafter(target, head, confidence=confidence).propose([one], 9)
            chance, before = 1.0, text[-1]
            for j in range(3):
                w, b = head.confidence.weight[0], head.confidence.bias[0]
                a = code(head, target, before)
                both = torch.cat([h[j], a])
                chance *= float((w @ both + b).sigmoid())
                assert (chance >= confidence) == (len(draft.tokens) > j)
                if len(draft.tokens) == j:
                    break
                gate = (head.pairs.gate.weight @ both + head.pairs.gate.bias).sigmoid()
                q = ((logits[j] + rows @ head.pairs.second.weight.T @ (gate * a)) / temperature).softmax(0)
                assert torch.allclose(draft.probs[j, :64], q, rtol=0, atol=1e-9) and not draft.probs[j, 64:].any()
                before = draft.tokens[j]
            for j in range(len(draft.tokens) + 1):  # of all drafts that begin alike, all go on or all end
                goes_on = ended.setdefault((tuple(text), *draft.tokens[:j]), len(draft.tokens) > j)
                assert goes_on == (len(draft.tokens) > j)
            lengths.add(len(draft.tokens))
    assert len(lengths) > 1


def test_the_tree_of_dflash2_is_the_likeliest_paths(tiny, two):
    check_tree(tiny, two)


@pytest.mark.slow
def test_a_chain_of_dspark_is_sampled_from_q_and_cut_by_what_was_before(tiny, spark):
    check_chain(tiny, spark)


# ---------------------------------------------------------------- wrong variants


class AllFollowsTheLastToken(DSpark):
    """Every blank's bias is that of the sequence's last token."""

    def filled(self, logits, states, last, *rest):
        self.last_token = last
        return super().filled(logits, states, last, *rest)

    def step(self, logits, h, before):
        return super().step(logits, h, self.last_token)


class LeavesTheMarkovHeadOut(DSpark):
    def step(self, logits, h, before):
        return logits, super().step(logits, h, before)[1]


class CutsOtherwise(DSpark):
    """Drafts whole blocks, and cuts them where `chances` of the confidences [b, n] fall below the threshold."""

    def step(self, logits, h, before):
        biased, c = super().step(logits, h, before)
        self.confidences.append(c)
        return biased, torch.ones_like(c)

    def filled(self, *inputs):
        self.confidences = []
        drafts = super().filled(*inputs)
        kept = (self.chances(torch.stack(self.confidences, 1)) >= self.confidence).sum(1)
        return [shortened(draft, n) for draft, n in zip(drafts, kept.tolist(), strict=True)]


class ConfidentInOneTokenAlone(CutsOtherwise):
    """Forgets that the tokens before must be accepted, too."""

    def chances(self, c):
        return c


class PeeksAtTheTokenThatItCuts(CutsOtherwise):
    """Decides with the confidence after a token, which depends on it, whether the draft ends before that token."""

    def chances(self, c):
        sure = c.cumprod(1)
        return torch.cat([sure[:, 1:], sure[:, -1:]], 1)


class PairsWithTheLastToken(DFlash2):
    """Every blank's pair scores are those with the sequence's last token."""

    def fillings(self, *inputs):
        expand = super().fillings(*inputs)
        return lambda depth, newest, parents: expand(depth, None, parents)


class ForgetsAllOtherTokens(DFlash2):
    """Normalises over the candidates, so that paths through unlikely ones look likely."""

    def fillings(self, *inputs):
        expand = super().fillings(*inputs)

        def normalised(*step):
            tokens, log_q = expand(*step)
            return tokens, log_q.log_softmax(-1)

        return normalised


@pytest.mark.parametrize(
    "wrong", [AllFollowsTheLastToken, LeavesTheMarkovHeadOut, ConfidentInOneTokenAlone, PeeksAtTheTokenThatItCuts]
)
def test_wrong_variants_of_dspark_are_noticed(tiny, spark, wrong):
    with pytest.raises(AssertionError):
        check_chain(tiny, spark, wrong)


@pytest.mark.parametrize("wrong", [PairsWithTheLastToken, ForgetsAllOtherTokens])
def test_wrong_variants_of_dflash2_are_noticed(tiny, two, wrong):
    with pytest.raises(AssertionError):
        check_tree(tiny, two, wrong)


# ---------------------------------------------------------------- in an engine, and trained


def test_an_engine_drafts_whole_blocks_if_they_are_chains(tiny, two, spark):
    for drafter, k, most in ((DSpark(tiny, spark), 3, 3), (DFlash2(tiny, two, nodes=8), 4, 8)):
        engine = ms.Engine(tiny, drafter)
        assert engine.k == k and engine.controller.sizes[-1] == most and engine.controller.chains == (k == 3)


def test_training_asks_for_what_is_drafted(tiny, two, spark):
    """The trainer's logits, given the tokens before, are those of the drafters' greedy paths; new scores are zero."""
    for head, drafter in ((two, DFlash2(tiny, two, tree=False)), (spark, DSpark(tiny, spark, confidence=0.0))):
        for text in TEXTS:
            (draft,) = drafter.propose([whole(tiny, head, text)], 3)
            drafter.forget(0)
            before = torch.tensor([text[-1], *draft.tokens[:-1]])
            logits = training.best_logits(head, states_of(drafter, tiny, text, 1), before, tiny.transformer)
            assert logits.argmax(-1).tolist() == draft.tokens
            drafter.forget(1)
    new = training.new_head(DFlash2Head, random_dflash(tiny), rank=8, neurons=12)
    (drafted,) = DFlash2(tiny, new, tree=False).propose([whole(tiny, new, TEXTS[2])], 3)
    assert drafted.tokens == by_hand(tiny, new, TEXTS[2]).argmax(-1).tolist()


@pytest.mark.slow
def test_training_lowers_the_loss_and_leaves_the_backbone_alone(tiny, tmp_path):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(64, (6, 40), generator=generator, dtype=torch.int32)
    corpus = Corpus(tokens, torch.full((6,), 2), torch.full((6,), 40), torch.zeros(6))
    backbone = random_dflash(tiny)
    heads = torch.nn.ModuleDict(
        {k.kind: training.new_head(k, backbone, rank=8, neurons=12) for k in (DFlash2Head, DSparkHead)}
    )
    heads.requires_grad_(False)
    for head in heads.values():
        head.pairs.requires_grad_(True)
    lessons = Lessons(tiny.transformer, corpus, backbone.hidden_layers)
    how = dict(batch_tokens=240, every=2, steps=40, lr=2e-2, folder=tmp_path, log_every=10)
    curve = training.train(heads, lessons, training.pair_loss, decay=4.0, **how)
    assert curve[-1]["loss"] < curve[0]["loss"]
    after = heads["dflash2"].state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in backbone.state_dict().items())
