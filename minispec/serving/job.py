"""A request as the engine knows it, with its model-side state, and its part in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..drafters.base import Context
from ..generate import Output
from ..speculate import Completion
from ..trace import Cycle
from ..tree import Draft
from ..verify import Verdict
from .request import RUNNING, Request, ScheduledRequest

HIDDEN_WINDOW = 512  # while the batch is too full to draft, the hidden states of so many tokens wait (or the prompt's)


@dataclass(eq=False, kw_only=True)
class Job(Completion):
    """One request: what the scheduler (request), the drafter (context) and the caller (writer) know of it."""

    request: Request
    added: float = 0.0  # moments, in seconds
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    tokens_read: int = 0  # by the target: prompt, output, drafts, and all of it again after a preemption
    output: Output | None = None  # once it has ended

    @property
    def speculates(self) -> bool:
        return self.request.k != 0

    def reveal(self) -> Context:
        """As in speculate.py, but the states stay until the drafter has answered: a call that fails is repeated."""
        unseen, context = self.unseen, super().reveal()
        self.unseen = unseen
        return context

    def forget_states(self) -> None:
        self.context.hidden, self.unseen = {}, []


@dataclass(eq=False)
class Turn:
    """A job's part in one step."""

    plan: ScheduledRequest
    job: Job
    asked: bool = False  # whether the drafter was
    count: int = 0  # tokens that the pass processed for it, scratch included
    draft: Draft = field(default_factory=lambda: Draft([]))
    logits: Tensor | None = None  # [1 + drafts + scratch, V], from the last certain token on; or else
    bucket: tuple[Tensor, int] | None = None  # the logits of its whole pass [B, T, V], and which row is its own
    hidden: dict[int, Tensor] = field(default_factory=dict)  # layer → states of all its tokens [n, d]
    verdict: Verdict | None = None
    cycle: Cycle | None = None

    @property
    def decodes(self) -> bool:
        """It processes its last token and a chain after it, if anything: no prompt, no tree, no scratch."""
        return self.plan.count == 1 and self.plan.emits and not self.branches

    @property
    def branches(self) -> bool:
        return self.draft.parents is not None or self.draft.scratch is not None

    def tokens(self) -> list[int]:
        return self.plan.tokens + (self.draft.scratch.tokens if self.draft.scratch else [])

    def ran(self, count: int, hidden: dict[int, Tensor]) -> None:
        self.count, self.hidden = count, hidden
        self.job.tokens_read += count


def running(turns: Sequence[Turn]) -> list[Turn]:
    """Those whose request has neither failed nor been aborted since the step began."""
    return [turn for turn in turns if turn.plan.request.status == RUNNING]
