"""DSpark: a block in one forward pass, then token by token a bias by the token before, and a guess when to stop.

(DeepSeek-AI, 2026, arXiv:2607.05147.) The block is DFlash's. Its logits at blank j know nothing of what was drafted at
j − 1, so a small sequential part follows, whose steps cost one product each instead of a pass of layers:

    logits_j     += W₂ (g ⊙ W₁[d_{j−1}])             the Markov head, of rank r; g = σ(W [h_j; W₁[d_{j−1}]] + c), or 1
    d_j          ~ softmax(logits_j)                 which is q_j, exactly
    c_j          = σ(w · [h_j; W₁[d_{j−1}]] + c₀)    the confidence head: will d_j be accepted, if those before it are?

A draft ends before the first j at which c₁ · … · c_j is below a threshold. c_j is computed before d_j is sampled and
depends on the tokens before it alone, all of which are in the draft. To look at d_j, or at its probability, and then
leave it out would be wrong: rare tokens would be proposed less often than q says, and the output would lean the other
way.
"""

from pathlib import Path

import torch
from torch import Tensor

from ..linear import linear
from ..load.model import Model
from ..model import Linear
from ..require import real, require
from .base import Draft
from .dflash import DFlash
from .dflash2 import PairHead
from .model import sample_chains


class DSparkHead(PairHead):
    kind, gate = "dspark", "sigmoid"

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.confidence = Linear(self.config.hidden_size + self.pairs.rank, 1)


class DSpark(DFlash):
    """Draft a chain with DSpark. A draft ends where the chance that all of it is accepted, by the confidence head,
    falls below `confidence` (0: it never does). Where the target samples, so does it."""

    head = DSparkHead

    def __init__(self, target: Model, heads: DSparkHead | str | Path | None = None, confidence: float = 0.05):
        require(real(confidence, 0, 1), "a number from 0 (never stop early) to 1", confidence=confidence)
        super().__init__(target, heads, tree=False)
        self.confidence = confidence
        head, self.embedding = self.heads, target.transformer.embed_tokens.weight
        self.after = head.pairs.after(torch.arange(len(head.head_ids), device=target.device), self.head_rows)  # [v, r]

    def step(self, logits: Tensor, h: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Of a blank with these logits [b, v] and states [b, d], given the tokens before it [b]: the biased logits, and
        c [b]."""
        pairs = self.heads.pairs
        codes = pairs.before(before, self.embedding)  # [b, r]
        c = self.heads.confidence(torch.cat([h, codes], -1)).sigmoid()[:, 0]
        return logits + linear(pairs.gated(codes, h), self.after), c

    def filled(self, logits: Tensor, states: Tensor, last: Tensor, sequences, budgets: list[int]) -> list[Draft]:
        depths = iter(range(states.shape[1]))
        sure: list[Tensor] = []  # [b] each: the chance that everything up to here is accepted

        def score(newest: Tensor | None) -> Tensor:
            j = next(depths)
            biased, c = self.step(logits[:, j], states[:, j], last if newest is None else newest)
            sure.append(sure[-1] * c if sure else c)
            everywhere = biased.new_full((len(biased), len(self.embedding)), -torch.inf)
            return everywhere.index_copy_(1, self.heads.head_ids, biased)

        chains = sample_chains(score, sequences, states.shape[1], None)
        kept = (torch.stack(sure, 1) >= self.confidence).sum(1).tolist()  # the chances only fall
        drafts = [shortened(chain, min(both)) for chain, *both in zip(chains, kept, budgets, strict=True)]
        for c, chain, draft, budget in zip(sequences, chains, drafts, budgets, strict=True):
            if chain.probs is not None and not c.sampling.greedy:  # the numbers of what is left out are still fresh
                c.coins.skip(len(draft.tokens) - budget)
        return drafts


def shortened(chain: Draft, count: int) -> Draft:
    return Draft(chain.tokens[:count], None if chain.probs is None or not count else chain.probs[:count])
