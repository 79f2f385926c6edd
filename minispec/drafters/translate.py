"""A draft model with another vocabulary than the target's (Timor et al., 2025, arXiv:2502.05202, token-level
intersection).

Only tokens that both vocabularies have can be proposed. Let S be these: the same bytes, whatever their ids. The draft
model's distribution is restricted to S and renormalised, q(x) = q_draft(x) / q_draft(S), a token is sampled from *that*
and its id is translated. So q is a distribution over the target's vocabulary and the one that was sampled from: the
output is exact. Tokens outside S come only from corrections and bonuses.

The draft model's context is the target's, as text, in its own tokens. A new piece can change the split of what comes
before it ("un" + "do" may be one token "undo"), so the whole text is tokenized again in every cycle, and the draft
model's cache is kept as far as its tokens are still the same.
"""

import codecs
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ..load.model import Model
from ..require import require_packages
from ..tree import Draft


class Padded:
    """The same tokens, and a different number of ids after them: vendors pad embeddings to round numbers. Ids that only
    the draft model has are forbidden, and those that only the target has get probability zero."""

    def __init__(self, own_size: int, target_size: int, own: Tensor, theirs: Tensor):
        self.target_size, self.own, self.theirs = target_size, own, theirs  # ids of the shared tokens in either one
        self.forbidden = torch.ones(own_size, dtype=torch.bool, device=own.device)  # [V of the draft model]
        self.forbidden[own] = False
        self.target_ids = torch.zeros(own_size, dtype=torch.long, device=own.device)  # [V of the draft model]
        self.target_ids[own] = theirs
        self.id_of = dict(zip(own.tolist(), theirs.tolist(), strict=True))

    def restrict(self, logits: Tensor) -> Tensor:
        """[..., V of the draft model] without the tokens that the target does not have: their probability is 0, and
        whatever makes a distribution of the rest renormalises it."""
        return logits.masked_fill(self.forbidden, -torch.inf)

    def to_target(self, draft: Draft) -> Draft:
        """Its tokens and distributions in the target's ids."""
        q = None
        if draft.probs is not None:
            q = draft.probs.new_zeros(len(draft.tokens), self.target_size)  # [k, V of the target]
            q[:, self.theirs] = draft.probs[:, self.own]
        return Draft([self.id_of[token] for token in draft.tokens], q)

    def to_draft(self, tokens: Sequence[int]) -> list[int]:
        """The context of the draft model. An id that only the target has is padding: no text holds it."""
        return [token if token in self.id_of else 0 for token in tokens]


class Shared(Padded):
    """Two vocabularies and the tokens that both have."""

    def __init__(self, draft: Model, target: Model):
        self.tokenizer, self.bytes_of = draft.tokenizer, spellings(target.tokenizer)
        own, theirs = ids(spellings(draft.tokenizer)), ids(self.bytes_of)
        shared = sorted((own[spelling], theirs[spelling]) for spelling in own.keys() & theirs.keys())
        if not shared:
            raise ValueError(f"{draft.name} and {target.name} have no token in common: choose another draft model")
        both = torch.tensor(shared, device=draft.device).T
        super().__init__(draft.config.vocab_size, target.config.vocab_size, *both)
        self.bytes_ids = {spelling[0]: id for spelling, id in own.items() if len(spelling) == 1}

    def to_draft(self, tokens: Sequence[int]) -> list[int]:
        """The same text in the draft model's tokens. Special tokens are no text and are left out; the bytes of a
        character that is not finished yet go as tokens of one byte each, where there are such."""
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        text = decoder.decode(b"".join(self.bytes_of.get(token, b"") for token in tokens))
        unfinished, _ = decoder.getstate()
        known = [self.bytes_ids[byte] for byte in unfinished if byte in self.bytes_ids]
        return [*self.tokenizer.encode(text, add_special_tokens=False).ids, *known]


def vocabulary(draft: Model, target: Model, translate: bool) -> Padded | None:
    """What stands between a draft model's ids and its target's; None: nothing, they are the same."""
    if translate:
        if draft.tokenizer is None or target.tokenizer is None:
            raise ValueError("translate=True needs the tokenizers of both models: load them from folders that have one")
        return Shared(draft, target)
    sizes = draft.config.vocab_size, target.config.vocab_size
    if sizes[0] == sizes[1] or not same_tokens(draft, target):
        return None
    both = torch.arange(min(sizes), device=draft.device)
    return Padded(*sizes, both, both)


def same_tokens(one: Model, other: Model) -> bool | None:
    """Whether both give every id they have in common the same token; None: one lacks a tokenizer, so nobody knows."""
    if one.tokenizer is None or other.tokenizer is None:
        return None
    small, large = sorted((one.tokenizer.get_vocab(), other.tokenizer.get_vocab()), key=len)
    return all(large.get(token) == id for token, id in small.items())


def spellings(tokenizer: Tokenizer) -> dict[int, bytes]:
    """id → the bytes of its text. Special tokens stand for no text and are left out."""
    require_packages("a draft model with another vocabulary", "structured", "llguidance")
    from llguidance import LLTokenizer  # which knows byte-level alphabets, and SentencePiece's ▁ and <0x0A>

    known = LLTokenizer(tokenizer.to_str())
    return {id: known.decode_bytes([id]) for id in range(known.vocab_size) if not known.is_special_token(id)}


def ids(spelled: dict[int, bytes]) -> dict[bytes, int]:
    """bytes → id; the lowest, where several tokens have the same text."""
    return {spelling: id for id, spelling in sorted(spelled.items(), reverse=True)}
