"""Processors and drafts: each position of a draft sees its own prefix, in the verify pass and in the drafter."""

from collections.abc import Sequence

from torch import Tensor

from ..tree import Draft, only


def process(logits: Tensor, sequences: Sequence, drafts: Sequence[Draft], guessed: bool = False) -> bool:
    """What each sequence's sampling does to the logits of a verify pass [B, n + 1, V], in place: at the last token and
    at every node, each by its own prefix. Whether any of them were changed. `guessed`: those of a draft model; where it
    knows no token that is allowed, since its vocabulary is small, they stay as they are."""
    changed = False
    for row, (sequence, draft) in enumerate(zip(sequences, drafts, strict=True)):
        if sequence.needs_processing:
            prefixes = {-1: sequence.output}
            for node, (token, parent) in enumerate(zip(draft.tokens, draft.node_parents, strict=True)):
                prefixes[node] = [*prefixes[parent], token]
            n = len(prefixes)
            made = sequence.processors(logits[row, :n], [*prefixes.values()], guessed)
            known = made.isfinite().any(-1, keepdim=True) | (not guessed)
            logits[row, :n] = made.where(known, logits[row, :n])
            changed = True
    return changed


def process_next(logits: Tensor, sequences: Sequence, drafted: Sequence[Sequence[int] | Tensor]) -> Tensor:
    """The same for a drafter that samples token by token: its logits [B, V] after each sequence and the tokens drafted
    so far, drafted[step][row]. The output is exact without this. With it, q is processed as p will be, and more of the
    draft is accepted."""
    if not any(sequence.needs_processing for sequence in sequences):
        return logits
    logits = logits.clone()
    for row, sequence in enumerate(sequences):
        if sequence.needs_processing:
            output = sequence.output + [int(step[row]) for step in drafted]
            made = sequence.processors(logits[row : row + 1], [output], guessed=True)[0]
            if bool(made.isfinite().any()):  # a draft model with a small vocabulary may know no token that is allowed
                logits[row] = made
    return logits


def without_impossible(draft: Draft, sequence) -> Draft:
    """A draft without nodes that are sure to be rejected. Sampled tokens stay: to leave out by what was sampled is to
    sample from something else, and then q would not be the distribution that the rest came from. min_new_tokens alone
    changes no draft: captured cycles, which know of nothing else, draft end tokens too."""
    if draft.probs is not None or not draft.tokens or not (sequence.needs_processing and sequence.processors.always):
        return draft
    kept = sequence.processors.possible(sequence.output, draft.tokens, draft.node_parents)
    return draft if len(kept) == len(draft.tokens) else only(draft, kept)
