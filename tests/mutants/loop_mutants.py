"""Wrong draft/verify loops. Each function breaks one part of the loop, or of the model drafter, by a monkeypatch."""

import sys
from collections.abc import Callable

import torch
from pytest import MonkeyPatch

import minispec as ms
from minispec import verify
from minispec.drafters import Draft
from minispec.drafters import model as drafter
from minispec.sampling import distributions

from .patching import Mutant, rewrite, rewritten

loop = sys.modules["minispec.speculate"]  # ms.speculate is the function

# ---- the target's cache --------------------------------------------------------------------------------------------


def target_not_rewound(patch: MonkeyPatch) -> None:
    """Leaves the rejected drafts in the target's cache: it goes on reading a text that nobody wrote."""
    more_room(patch)
    patch.setattr(loop.Loop, "keep", lambda self: None)


def correction_fed_twice(patch: MonkeyPatch) -> None:
    """Feeds the emitted token to the target when it is emitted, and again when it opens the next pass."""

    def forward(self):
        self.model.transformer(torch.tensor([[row.tokens[-1]] for row in self.sequences]), self.cache)
        return right(self)

    right = loop.Loop.forward
    more_room(patch)
    patch.setattr(loop.Loop, "forward", forward)


def more_room(patch: MonkeyPatch) -> None:
    """Slots for mutants that waste them, so that they die of a wrong text and not of a full cache."""
    right = loop.Loop.prefill
    patch.setattr(loop.Loop, "prefill", lambda self, room: right(self, room + 100))


# ---- the draft's cache ---------------------------------------------------------------------------------------------


def draft_not_rewound(patch: MonkeyPatch) -> None:
    """Leaves rejected tokens in the draft's cache and feeds the correction after them. The draft just guesses worse."""

    def make_room(self, ends):
        before = self.cache and self.cache.lengths
        right(self, {row: end + 100 for row, end in ends.items()})
        if before is not None and len(before) == len(self.cache.lengths):
            self.cache.lengths = before

    right = drafter.ContiguousMemory.make_room
    patch.setattr(drafter.ContiguousMemory, "make_room", make_room)


# ---- verification --------------------------------------------------------------------------------------------------


def bonus_forgotten(patch: MonkeyPatch) -> None:
    """Emits nothing after a draft that was accepted to its end: right, but every such cycle loses a token."""

    def chain_batch(p, q, drafted, lengths, u, **rules):
        accepted, tokens = right(p, q, drafted, lengths, u, **rules)
        whole = (accepted == lengths) & (lengths > 0)
        last = drafted.gather(1, (lengths - 1).clamp(min=0)[:, None]).squeeze(1) if drafted.shape[1] else tokens
        return torch.where(whole, accepted - 1, accepted), torch.where(whole, last, tokens)

    def greedy(best, drafted, parents=None):
        verdict = right_greedy(best, drafted, parents)
        whole = drafted and verdict.accepted == len(drafted)
        return verify.Verdict(verdict.path[:-1], drafted[-1]) if whole else verdict

    right, right_greedy = verify.chain_batch, verify.greedy
    patch.setattr(verify, "chain_batch", chain_batch)
    patch.setattr(verify, "greedy", greedy)


def verifier_reuses_the_drafts_numbers(patch: MonkeyPatch) -> None:
    """Tests each draft with the random number that drew it, as two generators of one seed would."""
    drawn = []

    def note(*asked):
        drawn.append(right(*asked))
        return drawn[-1]

    def reuse(*asked):
        u = right(*asked)
        if drawn and u.shape[1] > 1:  # a greedy draft drew nothing
            u[:, :-1] = drawn[-1][:, : u.shape[1] - 1]
        return u

    right = drafter.uniforms
    patch.setattr(drafter, "uniforms", note)
    patch.setattr(verify, "uniforms", reuse)


def targets_law_reported_for_the_drafts(patch: MonkeyPatch) -> None:
    """Draws at the draft's own temperature, but reports q at the target's (1 in these tests)."""
    drawn_from = []

    def report(logits, samplings):
        drawn_from.append(distributions(logits, samplings))
        return distributions(logits, [ms.Sampling(temperature=1.0)] * len(samplings))

    right = drafter.pick
    patch.setattr(drafter, "distributions", report)
    patch.setattr(drafter, "pick", lambda law, u: right(drawn_from.pop(), u))


def unlikely_drafts_dropped(patch: MonkeyPatch) -> None:
    """Cuts a draft before the first token that was a lucky draw. What is left was selected, and the law bends."""

    def cut(draft, depth):
        draft = right(draft, depth)
        if draft.probs is None:
            return draft
        q = verify.at(draft.probs, torch.tensor(draft.tokens, dtype=torch.long)).tolist()
        likely = next((i for i, probability in enumerate(q) if probability < 0.3), len(q))
        return Draft(draft.tokens[:likely], draft.probs[:likely])

    right = loop.cut
    patch.setattr(loop, "cut", cut)


# ---- the end of a text ---------------------------------------------------------------------------------------------


def write_until(ends: Callable[[str | None], bool]):
    def emit(sequence, tokens, logits=None):
        for kept, token in enumerate(tokens, start=1):
            right(sequence, [token])
            if ends(sequence.finish_reason):
                return kept
        return len(tokens)

    right = ms.Sequence.emit
    return emit


def stop_ignored_inside_a_run(patch: MonkeyPatch) -> None:
    """Looks for the end token only at the end of a cycle, so text follows it."""
    patch.setattr(ms.Sequence, "emit", write_until(lambda finish: finish == "length"))


def length_overshot(patch: MonkeyPatch) -> None:
    """Drafts as if there were room, and writes whole cycles: up to k tokens more than were asked for."""
    rewrite(patch, loop.Loop, "step", "min(size, sequence.room)", "size")
    patch.setattr(ms.Sequence, "emit", write_until(lambda finish: finish == "stop"))  # plain decoding emits one by one


# ---- who catches whom ----------------------------------------------------------------------------------------------


MUTANTS = {
    install.__name__: Mutant(install, caught_by)
    for install, *caught_by in (
        (target_not_rewound, "greedy", "distribution", "calls", "caches"),
        (correction_fed_twice, "greedy", "distribution", "calls", "caches"),
        (draft_not_rewound, "calls", "caches"),
        (bonus_forgotten, "bonus", "calls"),
        (verifier_reuses_the_drafts_numbers, "distribution"),
        (targets_law_reported_for_the_drafts, "own temperature"),
        (unlikely_drafts_dropped, "distribution"),
        (stop_ignored_inside_a_run, "stop", "greedy"),
        (length_overshot, "length", "greedy"),
    )
}
SHIFTED = "torch.cat([self.logits[:, 1:], self.logits[:, -1:]], 1)"
REPEATED = "torch.cat([self.logits[:, :-1], self.logits[:, -2:-1]], 1) if self.logits.shape[1] > 1 else self.logits"
MUTANTS |= {
    # Forgets the last accepted draft as well, which is never read again.
    "target_rewound_too_far": rewritten(
        loop.Loop,
        "keep",
        "[1 + cycle.accepted for",
        "[max(1, cycle.accepted) for",
        "greedy",
        "distribution",
        "calls",
        "caches",
    ),
    # Drops a finished row from the batch but keeps its cache row: everyone below moves up into another's memory.
    "finished_rows_stay_in_the_cache": rewritten(
        loop.Loop, "leave", "rows(going)", "rows(range(len(going)))", "greedy"
    ),
    # After a = k believes that the last draft was read too. Nothing bends: the draft just guesses worse.
    "draft_skips_its_last_token": rewritten(
        drafter.DraftModel,
        "settle",
        "min(self.memory.lengths[id], self.committed.pop(id) + len(path))",
        "self.committed.pop(id) + len(path)",
        "calls",
        "caches",
    ),
    # Throws the draft's cache away after every cycle: right, and slower with every token.
    "draft_reads_all_again": rewritten(
        drafter.DraftModel,
        "settle",
        "self.committed.pop(id) + len(path)",
        "0 * self.committed.pop(id)",
        "calls",
        "caches",
    ),
    # Compares each draft with the law of the token after it.
    "p_off_by_one": rewritten(
        loop.Loop, "judge", "judge(self.logits", f"judge({SHIFTED}", "greedy", "distribution", "calls"
    ),
    # Draws the bonus from the law that the last draft was compared with.
    "bonus_from_the_last_draft": rewritten(
        loop.Loop, "judge", "judge(self.logits", f"judge({REPEATED}", "greedy", "distribution", "calls"
    ),
    # Ignores that some rows drafted less than others, and tests the padding.
    "padding_is_verified": rewritten(
        loop,
        "judge",
        "chain_batch(p, q, drafted, lengths, u",
        "chain_batch(p, q, drafted, None, u",
        "distribution",
        "ragged law",
    ),
    # Forgets rows where they end, but not when something goes wrong on the way.
    "broken_runs_forget_nothing": rewritten(loop.Loop, "close", "self.drafter.forget(sequence.id)", "pass", "forgets"),
    # Forgets a row only when the whole batch ends with it: of those before it the drafter keeps all it knows.
    "rows_forgotten_with_the_batch": rewritten(loop.Loop, "finish", "if sequence.ended:", "if not going:", "forgets"),
}
