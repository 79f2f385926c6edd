"""Wrong processors. Each function breaks one part of what depends on the prefix, as engines have had it broken."""

import sys

from pytest import MonkeyPatch

from minispec import verify
from minispec.processors import constraint, drafts
from minispec.processors.prefix import Processors
from minispec.sequence import Sequence
from minispec.serving.runner import Runner
from minispec.tree import Draft

from .patching import Mutant, rewrite

loop = sys.modules["minispec.speculate"]  # ms.speculate is the function


def one_prefix_for_all_positions(patch: MonkeyPatch) -> None:
    """Penalties are counted once per pass: every position of a draft sees the output as it was before the draft."""

    def process(logits, contexts, given):
        for row, (context, draft) in enumerate(zip(contexts, given, strict=True)):
            if context.needs_processing:
                n, output = len(draft.tokens) + 1, context.output
                logits[row, :n] = context.processors(logits[row, :n], [output] * n)
        return True

    patch.setattr(verify, "process", process)


def siblings_are_on_one_path(patch: MonkeyPatch) -> None:
    """A tree's nodes in the order of the pass: what a sibling guessed counts as if it had been emitted."""
    rewrite(
        patch,
        drafts,
        "process",
        "prefixes[node] = [*prefixes[parent], token]",
        "prefixes[node] = [*prefixes[node - 1], token]",
    )
    patch.setattr(verify, "process", drafts.process)


def best_tokens_of_the_raw_logits(patch: MonkeyPatch) -> None:
    """An engine's shortcut for greedy requests does not look whether anything is to be processed."""
    rewrite(patch, Runner, "verify", "sequence.needs_processing or not (", "not (")


def states_not_rolled_back(patch: MonkeyPatch) -> None:
    """The matcher goes on from the last state that it was asked for: after a rejected draft, a wrong one."""
    rewrite(patch, constraint.Guided, "allowed", "self.matcher.rollback(len(self.seen) - same)", "pass")


def sampled_tokens_left_out(patch: MonkeyPatch) -> None:
    """Cuts a sampled draft where it is sure to be rejected. What is emitted there then comes from p, not from the
    residual: looks harmless, and is biased."""

    def without_impossible(draft: Draft, context: Sequence) -> Draft:
        bare = Draft(draft.tokens, None, draft.parents, draft.scratch)
        if (left := right(bare, context)) is bare:
            return draft
        return Draft(left.tokens, draft.probs if draft.probs is None else draft.probs[: len(left.tokens)], left.parents)

    right = loop.without_impossible
    patch.setattr(loop, "without_impossible", without_impossible)
    patch.setattr("minispec.drafters.model.process_next", lambda logits, contexts, drafted: logits)


def drafts_are_masked_and_q_is_not(patch: MonkeyPatch) -> None:
    """The draft token is taken from processed logits, and the verifier is told of the distribution before."""

    def sampled(self, contexts, k):
        made = right(self, contexts, k)
        for context, draft in zip(contexts, made, strict=True):
            if context.needs_processing and draft.probs is not None:
                draft.probs = 0.5 * draft.probs + 0.5 / draft.probs.shape[-1]
        return made

    from minispec.drafters.model import DraftModel

    right = DraftModel._chains
    patch.setattr(DraftModel, "_chains", sampled)


def may_end_anywhere(patch: MonkeyPatch) -> None:
    """End tokens are allowed in every state: half a match is emitted as if it were one."""

    def allowed(self, output):
        if (mask := right(self, output)) is not None:
            mask[list(self.ends)] = True
        return mask

    right = constraint.Guided.allowed
    patch.setattr(constraint.Guided, "allowed", allowed)


def the_answer_begins_between_passes(patch: MonkeyPatch) -> None:
    """Whether the tag is there is asked once a pass, before the draft: what is drafted after it is not constrained.
    vLLM did this until #44297."""

    def processed(self, logits, outputs, guessed=False):
        whole = self.constraint
        if isinstance(whole, constraint.After) and whole.tag not in b"".join(whole.texts[x] for x in outputs[0]):
            self.constraint = None
        made, self.constraint = right(self, logits, outputs, guessed), whole
        return made

    right = Processors.__call__
    patch.setattr(Processors, "__call__", processed)


def the_first_token_is_not_shown(patch: MonkeyPatch) -> None:
    """The constraint begins one token too late, and asks for its first token again: "{{" (vLLM, #48228)."""
    rewrite(patch, constraint.After, "allowed", "output[n:])", "output[n + 1 :])")


def a_rejected_tag_stays(patch: MonkeyPatch) -> None:
    """Where the answer begins is remembered, even if the tag was in a draft and the draft was rejected."""

    def allowed(self, output):
        text = b"".join(self.texts[token] for token in output)
        if self.tag in text and not hasattr(self, "found"):
            self.found = len(output)
        return self.answer(b"", output[self.found :]) if hasattr(self, "found") else right(self, output)

    right = constraint.After.allowed
    patch.setattr(constraint.After, "allowed", allowed)


def a_tag_in_the_prompt_counts(patch: MonkeyPatch) -> None:
    """Earlier turns of a chat hold closing tags as well."""
    whole = "[*self.prompt, *output] if isinstance(self.constraint, After) else output"
    rewrite(patch, Processors, "forbidden", "self.constraint.allowed(output)", f"self.constraint.allowed({whole})")


def what_shares_a_token_with_the_tag_is_free(patch: MonkeyPatch) -> None:
    """The constraint is asked about whole tokens after the tag alone."""
    rewrite(patch, constraint.After, "answer", "while rest:", "while False:")


def reasoning_may_end_without_an_answer(patch: MonkeyPatch) -> None:
    """As vLLM has it: free text may end anywhere."""
    rewrite(patch, constraint.After, "free", "mask[self.ends] = False", "pass")


MUTANTS = {
    mutant.__name__: Mutant(mutant, caught_by)
    for mutant, *caught_by in (
        (one_prefix_for_all_positions, "penalties", "exact"),
        (siblings_are_on_one_path, "exact"),
        (best_tokens_of_the_raw_logits, "engine"),
        (states_not_rolled_back, "constraint"),
        (sampled_tokens_left_out, "law"),
        (drafts_are_masked_and_q_is_not, "law"),
        (may_end_anywhere, "constraint"),
        (the_answer_begins_between_passes, "boundary"),
        (the_first_token_is_not_shown, "boundary"),
        (a_rejected_tag_stays, "boundary"),
        (a_tag_in_the_prompt_counts, "boundary"),
        (what_shares_a_token_with_the_tag_is_free, "boundary"),
        (reasoning_may_end_without_an_answer, "boundary"),
    )
}
