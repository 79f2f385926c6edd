"""Wrong draft/verify loops: one piece of the loop, or of the model drafter, changed; and the checks that catch each."""

import sys

from minispec.drafters import model as drafter

from .patching import rewritten

loop = sys.modules["minispec.speculate"]  # ms.speculate is the function

SHIFTED = "torch.cat([self.logits[:, 1:], self.logits[:, -1:]], 1)"
REPEATED = "torch.cat([self.logits[:, :-1], self.logits[:, -2:-1]], 1) if self.logits.shape[1] > 1 else self.logits"
MUTANTS = {
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
