"""A small model drafts: it runs ahead of the target, token by token, on a cache of its own.

Bookkeeping. Before a cycle the cache lacks the last token, and the one before it if the last draft was accepted whole
(its last token was proposed, but never processed). So `propose` first processes whatever is missing, which is one rule
for both cases and for the prompt too. After the cycle, `settle` rewinds what the target rejected.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..load.model import Model
from ..processors.constraint import common
from ..processors.drafts import process, process_next
from ..recurrent import DEEPEST
from ..sampling import GOLDEN, Sampling, coupled, distributions, largest, noise_of, pad, pick, signed, uniforms
from ..sequence import Sequence
from .base import Draft, Drafter
from .cache import DraftCache
from .translate import Padded, Shared, vocabulary


class DraftModel(Drafter):
    """Draft with a model of the target's vocabulary: `ms.drafters.Model(draft)`.

    `sampling` may differ from the target's: the output is exact all the same. `translate`: the draft model has another
    tokenizer, so draft only what both vocabularies have (translate.py).
    """

    pass_tokens = 2  # what is new of a sequence after a cycle, at the most: captured passes take so many

    def __init__(self, draft: Model, sampling: Sampling | None = None, translate: bool = False):
        self.draft, self.sampling, self.translate = draft, sampling, translate
        self.target: Model | None = None  # what it drafts for: see `fit`
        self.vocabulary: Padded | None = None  # between its ids and the target's, if they differ
        self.held: dict[int, list[int]] = {}  # translated sequences: the draft model's tokens when last drafted for
        self.memory = ContiguousMemory(draft)
        self.committed: dict[int, int] = {}  # how many tokens each sequence had when it was last drafted for

    def __repr__(self) -> str:
        return f"{type(self).__name__.removeprefix('Draft')}({self.draft.name})"  # as users type it: Model(…)

    @property
    def chain_model(self) -> Model | None:
        """The draft model, whose plain chain this drafts: a device may run it all alone. A subclass that drafts in
        its own way drafts something else: None."""
        own = type(self).propose is not DraftModel.propose or type(self)._chains is not DraftModel._chains
        plain = not (own or self.translate or self.vocabulary)
        return self.draft if plain else None

    def fit(self, target: Model) -> None:
        if self.target is not target and type(self)._chains is DraftModel._chains:  # others choose tokens themselves
            self.vocabulary, self.target = vocabulary(self.draft, target, self.translate), target
        own, theirs = self.draft.config.vocab_size, target.config.vocab_size
        if self.vocabulary is None and own != theirs:
            raise ValueError(
                f"the drafter scores {own} token ids and the target {theirs}: a draft model with the target's "
                "tokenizer needs that in its folder; one with another tokenizer can draft the tokens that both have: "
                "ms.drafters.Model(draft, translate=True)"
            )

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        if self.captured and sequences and k >= 1 and self.captured.knows(sequences):
            return self.captured.propose(sequences, k)
        if self.vocabulary is not None:
            sequences = [self._translated(sequence) for sequence in sequences]
        k = min(k, DEEPEST) if self.draft.config.delta else k  # of as many passes there are states to come back to
        # Past the draft model's own context length there is nothing to propose. All other sequences get their drafts.
        fitting = [c for c in sequences if k >= 1 and 0 < len(c.tokens) <= self.draft.config.max_length - k]
        self.open(fitting)
        chains = self._chains(fitting, k) if fitting else []
        if self.vocabulary is not None:
            self.held |= {c.id: c.tokens + chain.tokens for c, chain in zip(fitting, chains, strict=True)}
            chains = map(self.vocabulary.to_target, chains)
        draft_of = {c.id: draft for c, draft in zip(fitting, chains, strict=True)}
        return [draft_of.get(c.id, Draft([])) for c in sequences]

    def read_prompts(self, sequences: list[Sequence]) -> None:
        if self.captured and self.captured.knows(sequences):
            self.captured.read_prompts(sequences)

    def open(self, sequences: list[Sequence]) -> dict[int, list[int]]:
        """A cycle begins: the tokens of each that are not in the cache, the last one always."""
        for c in sequences:
            if c.id in self.committed:  # a draft that was never settled came to nothing
                self.settle(c.id, [], c.tokens[-1])
            # What follows the last token is asked for, so that one is processed, perhaps once more.
            self.memory.lengths[c.id] = min(self.memory.lengths.get(c.id, 0), len(c.tokens) - 1)
            self.committed[c.id] = len(c.tokens)
        return {c.id: c.tokens[self.memory.lengths[c.id] :] for c in sequences}

    def _translated(self, sequence: Sequence) -> Sequence:
        """The sequence in the draft model's own tokens; its cache is rewound to where they are still the same."""
        tokens, id, lengths = self.vocabulary.to_draft(sequence.tokens), sequence.id, self.memory.lengths
        if id in lengths:
            lengths[id] = min(lengths[id], common(self.held.get(id, []), tokens))
        noise = sequence.noise
        if noise is not None:  # positions are the target's
            noise = signed(noise + (len(sequence.tokens) - len(tokens)) * GOLDEN)
        # Processors speak the target's ids: left out here, which is exact all the same.
        changed = dict(tokens=tokens, noise=noise, prompt_length=-1, num_computed_tokens=0, processors=None)
        return replace(sequence, **changed)

    def _chains(self, sequences: list[Sequence], k: int) -> list[Draft]:
        """k tokens for every sequence, one after the other. The last one is not processed: nothing follows it."""
        self.memory.make_room({sequence.id: len(sequence.tokens) + k - 1 for sequence in sequences})
        first = {sequence.id: sequence.tokens[self.memory.lengths[sequence.id] :] for sequence in sequences}

        def score(newest: Tensor | None) -> Tensor:
            new = first if newest is None else {id: [token] for id, token in zip(first, newest.tolist(), strict=True)}
            logits = self.memory.forward(new)  # [B, V]
            return logits if self.vocabulary is None else self.vocabulary.restrict(logits)

        return sample_chains(score, sequences, k, self.sampling, self.vocabulary and self.vocabulary.target_ids)

    def read_drafts(self, sequences: list[Sequence], drafts: list[Draft], samplings: list[Sampling]) -> Tensor:
        """One pass over what is new of each sequence and its draft, as a target verifies it: the distributions after
        the last token and after every draft token, [b, n + 1, V]."""
        whole = {c.id: c.tokens + draft.tokens for c, draft in zip(sequences, drafts, strict=True)}
        self.memory.make_room({id: len(tokens) for id, tokens in whole.items()})
        new = {id: tokens[self.memory.lengths[id] :] for id, tokens in whole.items()}
        logits = self.memory.forward(new, [1 + len(draft.tokens) for draft in drafts])
        process(logits, sequences, drafts, guessed=True)
        return distributions(logits, samplings)

    def settle(self, id: int, path: list[int], emitted: int, scratch: Tensor | None = None) -> None:
        """Keep the committed tokens and the accepted draft tokens, of which the k-th was never processed."""
        if id in self.committed:  # taken out: a cycle that was not drafted for changes nothing
            self.memory.lengths[id] = min(self.memory.lengths[id], self.committed.pop(id) + len(path))

    def rewind(self, id: int, length: int) -> None:
        if length < 1 or isinstance(self.vocabulary, Shared):  # it starts afresh: its slots are free until then
            DraftModel.forget(self, id)
        elif id in self.memory.lengths:
            self.memory.lengths[id] = min(self.memory.lengths[id], length)

    def forget(self, id: int) -> None:
        self.committed.pop(id, None)
        self.held.pop(id, None)
        (self.captured or self.memory).forget(id)

    def become(self, fork: Hashable, id: int) -> None:
        """What was drafted for a fork was drafted for the sequence: it goes on in the fork's memory."""
        self.memory.forget(id)
        self.memory.rename(fork, id)
        self.committed[id] = self.committed.pop(fork)

    def capture(self) -> None:
        if isinstance(self.memory, ContiguousMemory) and not self.memory.lengths and self.draft.transformer.ordinary:
            self.memory = self.draft.capturer().draft_memory(self.pass_tokens)
        super().capture()

    def release(self) -> None:
        if not self.memory.lengths:
            super().release()
            self.memory.release()


def sample_chains(score: Callable, sequences: list[Sequence], k: int, sampling=None, ids=None) -> list[Draft]:
    """k tokens for every sequence, by `sampling` or the sequence's own: score(newest) gives the logits [B, V] of what
    follows the newest tokens [B], and at first, with None, of what follows the sequences. Coupled sequences draft what
    the target would choose by these logits, for which its `ids` [V] say what each token is called there."""
    samplings = [sampling or sequence.sampling for sequence in sequences]
    greedy = all(sampling.greedy for sampling in samplings)
    tokens, probs, u = [], [], None
    for step in range(k):
        logits = process_next(score(tokens[-1] if tokens else None), sequences, tokens)  # [B, V]
        if greedy:
            chosen = largest(logits)  # [B]
        elif sequences[0].noise is not None:
            chosen = coupled(distributions(logits, samplings), noise_of(sequences, step, logits.device), ids)
        else:
            if u is None:
                counts = [s.allowed_nodes(k) * (not own.greedy) for s, own in zip(sequences, samplings, strict=True)]
                u = uniforms([sequence.coins for sequence in sequences], counts, logits.device)  # [B, ≤ k]
                u = F.pad(u, (0, k - u.shape[1]))  # what is picked by a zero is not kept
            probs.append(distributions(logits, samplings))  # [B, V]
            chosen = pick(probs[-1], u[:, step])
        tokens.append(chosen)
    drafted = torch.stack(tokens, 1).tolist()  # B lists of k; until here the host need not know them
    sampled_from = torch.stack(probs, 1) if probs else [None] * len(sequences)  # [B, k, V]
    return [Draft(chain, q) for chain, q in zip(drafted, sampled_from, strict=True)]


New = dict[int, list[int]]  # sequence → its tokens to process, one at least


def ends(x: Tensor, rows: Iterable[int], lengths: list[int], tails: list[int] | None) -> Tensor:
    """x [B, T, …] at the last real position of these rows [b, …]; or at its last `tail` ones [b, longest tail, …], the
    first of them first, and anything where a tail is shorter."""
    first = torch.tensor(lengths) - torch.tensor(tails or [1] * len(lengths))
    asked = first[:, None] + torch.arange(max(tails or [1]))  # [b, longest tail]
    found = x[torch.tensor([*rows])[:, None].to(x.device), asked.clamp(max=x.shape[1] - 1).to(x.device)]
    return found if tails else found[:, 0]


class ContiguousMemory(DraftCache):
    """A draft model's cache, and its passes. On a GPU, PagedMemory does the same by launches (gpu/draft_memory.py)."""

    def __init__(self, draft: Model):
        super().__init__(draft.config, draft.transformer.new_cache)
        self.draft = draft

    def forward(self, new: New, tails: list[int] | None = None) -> Tensor:
        """One pass over the new tokens of the sequences that room was made for: logits [B, V] of what follows the last
        of each; or, with `tails`, of what follows the last few [B, longest tail, V]."""
        rows, run = list(new.values()), partial(self.draft.transformer.body, cache=self.cache)
        if self.cache.states and max(map(len, rows)) > 1 + DEEPEST:  # so that the last states of a prompt are kept
            tokens, counts = pad([tokens[: -1 - DEEPEST] for tokens in rows], self.draft.device)
            run(tokens, counts=counts)
            rows = [tokens[-1 - DEEPEST :] for tokens in rows]
        tokens, counts = pad(rows, self.draft.device)
        x, _ = run(tokens, counts=counts)  # [B, T, d]
        for id, tokens in new.items():
            self.lengths[id] += len(tokens)
        return self.draft.transformer.head(ends(x, range(len(x)), counts.tolist(), tails))
