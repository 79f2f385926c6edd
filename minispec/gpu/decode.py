"""Decoding near the hardware's limit: one launch writes a token, or a whole draft/verify cycle.

The text itself lives on the device, `text` [B, S], with `count` [B] tokens of it written; the last one is unread. A
launch reads what is unread, decides, appends and moves `count` on. The host only says how often, and looks now and
then whether the text has ended: what was written past its end is dropped, so the result is that of `generate`.

    plain         the target reads the last token; choose one more, append it
    speculative   the draft runs k tokens ahead; the target reads [last, d₁ … d_k]; accept, append

The random numbers are those of the reference, drawn in its order: the same seed writes the same tokens, as far as
rounding allows. Memory after every cycle (a accepted of k, n = count): the target has read n − 1 tokens, the draft
n − 1 too, or n − 2 if a = k, since nobody has read d_k yet. It always reads two tokens next, from where it stopped:
the second is padding unless a = k. Padding lands past the length and is overwritten, so one shape does for both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..generate import pad
from ..sampling import Sampling
from ..trace import Cycle
from ..verify import at, chain_batch
from .fused import FastTransformer
from .record import Recorded, on_the_device

PAGE = 256  # numbers of a law that `pick_by_page` sums at once


def pick_by_page(law: Tensor, u: Tensor) -> Tensor:
    """verify.pick for laws [B, V] and u [B], without one long running total, which a GPU is slow at.

    First the page on which the total passes u, from the sums of all pages, then the place on that page.
    """
    pages = F.pad(law.double(), (0, -law.shape[-1] % PAGE)).unflatten(-1, (-1, PAGE))  # [B, n, PAGE]
    sums = pages.sum(-1)  # [B, n]
    totals = sums.cumsum(-1)
    goal = u[:, None] * totals[:, -1:]  # [B, 1]
    page = torch.searchsorted(totals, goal, right=True).clamp(max=sums.shape[1] - 1)
    numbers = pages.gather(1, page[..., None].expand(-1, -1, PAGE))[:, 0]  # [B, PAGE]
    before = (totals - sums).gather(1, page)
    place = torch.searchsorted(numbers.cumsum(-1), goal - before, right=True)  # [B, 1]
    # Summed in another order the page may end a hair below the goal: then it is its last possible token.
    last = torch.where(numbers > 0, torch.arange(PAGE, device=law.device), 0).amax(-1, keepdim=True)
    return (page * PAGE + torch.minimum(place, last)).squeeze(-1)


def finite(numbers: Tensor) -> Tensor:
    """Whether there is no NaN or ∞ in logits or laws [..., V]."""
    return numbers.amax(-1).isfinite().all()


class FastDecoder:
    """Plain decoding, one launch a token."""

    most = 1  # tokens that a launch adds at the most

    @on_the_device
    def __init__(self, target: FastTransformer, sampling: Sampling | None = None):
        self.target, self.sampling, device = target, sampling or Sampling(), target.device
        self.text = torch.zeros(target.batch, target.capacity + 1, dtype=torch.long, device=device)  # [B, S + 1]
        self.count = torch.ones(target.batch, dtype=torch.long, device=device)  # [B]
        self.sound = torch.ones((), dtype=torch.bool, device=device)  # no NaN so far
        self.generator = torch.Generator(device).manual_seed(0)
        self.choose = target.compiled(self.choose)
        self.recorded = Recorded(self.step, self.state(), None if self.sampling.greedy else self.generator)
        self.bound = target.capacity + 1  # count at the most, as far as the host knows; nothing has started yet
        self.fetched: list[int] = []

    def state(self) -> list[Tensor]:
        """What a launch changes, apart from memory past the lengths."""
        return [self.count, self.text, self.sound, self.target.lengths]

    @on_the_device
    def start(self, prompts: Sequence[Sequence[int]], seed: int | None = None) -> None:
        """Begin anew, one prompt a row: everything but its last token is read now."""
        if len(prompts) != self.target.batch:
            raise ValueError(f"{len(prompts)} prompts for {self.target.batch} rows of memory: give one for each")
        self._refuse_more_than(max(map(len, prompts)) + self.most - 1)
        self.generator.manual_seed(seed) if seed is not None else self.generator.seed()
        tokens, counts = pad([list(prompt) for prompt in prompts], self.target.device)
        self.text[:, : tokens.shape[1]] = tokens
        self.count.copy_(counts)
        self.sound.fill_(True)
        self.read_prompts(tokens[:, :-1], counts - 1)
        self.fetched = [len(prompt) for prompt in prompts]
        self.bound = max(self.fetched)

    def read_prompts(self, tokens: Tensor, counts: Tensor) -> None:
        self.target.prefill(tokens, counts)

    def launch(self, times: int = 1) -> None:
        """Write on. Nothing is waited for; refused where the longest possible result would not fit."""
        self._refuse_more_than(self.bound + times * self.most - 1)
        for _ in range(times):
            self.recorded()
        self.bound += times * self.most

    def _refuse_more_than(self, tokens: int) -> None:
        if tokens > self.target.capacity:
            raise ValueError(f"capacity={self.target.capacity}: this may need {tokens} slots a row; make the "
                             "FastTransformer with more, or start again with a shorter prompt")  # fmt: skip

    @on_the_device
    def fetch(self) -> list[list[int]]:
        """Wait, and get what each row has written since the last look."""
        counts = self.count.tolist()
        if not bool(self.sound):
            raise ValueError("logits contain NaN or ∞: the weights are damaged, or a half-precision model overflowed")
        first = min(self.fetched)
        rows = self.text[:, first : max(counts)].tolist()
        new = [row[a - first : b - first] for row, a, b in zip(rows, self.fetched, counts, strict=True)]
        self.fetched, self.bound = counts, max(counts)
        return new

    def step(self) -> None:
        logits = self.target.step(self.text.gather(1, self.count[:, None] - 1))[:, -1]  # [B, V]
        token, sound = self.choose(logits, None if self.sampling.greedy else self.exponentials(logits))
        self.sound &= sound
        self.append(token[:, None], torch.ones_like(self.count))

    def choose(self, logits: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """The next token [B], and whether there was no NaN or ∞."""
        if noise is None:
            return logits.argmax(-1), finite(logits)
        p = self.sampling.law(logits)
        return (p / noise).argmax(-1), finite(p)

    def exponentials(self, logits: Tensor) -> Tensor:
        """As torch.multinomial draws: an exponential race that token x wins with probability p(x)."""
        noise = torch.empty_like(logits, dtype=torch.promote_types(logits.dtype, torch.float32))
        return noise.exponential_(generator=self.generator)

    def append(self, tokens: Tensor, kept: Tensor) -> None:
        """Write tokens [B, m] behind the text; the first `kept` [B] count, the next launch overwrites the rest."""
        places = self.count[:, None] + self.target.places[: tokens.shape[1]]
        self.text.scatter_(1, places, tokens)
        self.count += kept


class FastSpeculator(FastDecoder):
    """Speculative decoding, one launch a cycle: k drafts of another FastTransformer, verified and appended."""

    @on_the_device
    def __init__(self, target: FastTransformer, draft: FastTransformer, k: int = 4, sampling: Sampling | None = None,
                 draft_sampling: Sampling | None = None):  # fmt: skip
        if target is draft:
            raise ValueError("draft is target: give it a FastTransformer of its own, each needs its own memory")
        if target.config.vocab_size != draft.config.vocab_size or target.batch != draft.batch:
            raise ValueError(
                f"draft has {draft.batch} rows and {draft.config.vocab_size} tokens, target {target.batch} and "
                f"{target.config.vocab_size}: both need the same rows and the same tokenizer"
            )
        if draft.capacity < target.capacity:
            raise ValueError(f"draft's capacity={draft.capacity}: give it the target's, {target.capacity}, at least")
        if not 1 <= k < target.capacity:
            raise ValueError(f"k={k!r}: give a draft length from 1 to {target.capacity - 1}")
        self.draft, self.k, self.most = draft, k, k + 1
        # One line a cycle (it adds a token at least): its drafts, the token after them, how many were accepted; and
        # what target and draft gave each draft.
        self.log = torch.zeros(target.capacity, target.batch, k + 2, dtype=torch.long, device=target.device)
        self.chances = torch.zeros(target.capacity, target.batch, 2 * k, dtype=torch.float64, device=target.device)
        self.cycles = torch.zeros(1, dtype=torch.long, device=target.device)
        super().__init__(target, sampling)
        self.draft_sampling = draft_sampling or self.sampling
        self.draw, self.judge = target.compiled(self.draw), target.compiled(self.judge)
        if not self.draft_sampling.greedy:
            self.recorded.generator = self.generator

    def state(self) -> list[Tensor]:
        return [*super().state(), self.draft.lengths, self.cycles, self.log, self.chances]

    def read_prompts(self, tokens: Tensor, counts: Tensor) -> None:
        super().read_prompts(tokens, counts)
        self.draft.prefill(tokens, counts)
        self.cycles.zero_()

    def step(self) -> None:
        n = self.count.clone()  # [B]
        drafted, laws = self.propose(n)
        last = self.text.gather(1, n[:, None] - 1)
        logits = self.target.step(torch.cat([last, drafted], 1))  # [B, k + 1, V]
        u = None if self.sampling.greedy else self.uniforms(self.k + 1)
        accepted, token, chances, sound = self.judge(logits, drafted, laws, u)
        self.sound &= sound
        run = torch.cat([drafted, token[:, None]], 1)
        self.append(run.scatter(1, accepted[:, None], token[:, None]), accepted + 1)
        self.target.lengths.copy_(n + accepted)
        self.draft.lengths.copy_(n + accepted.clamp(max=self.k - 1))  # it never read the k-th draft
        self.log.index_copy_(0, self.cycles, torch.cat([run, accepted[:, None]], 1)[None])
        self.chances.index_copy_(0, self.cycles, chances[None])
        self.cycles += 1

    def propose(self, n: Tensor) -> tuple[Tensor, list[Tensor]]:
        """k drafts [B, k] and the laws they were drawn from, k times [B, V] (none: the likeliest tokens)."""
        read = self.draft.lengths.clone()
        u = None if self.draft_sampling.greedy else self.uniforms(self.k)
        unread = self.text.gather(1, read[:, None] + self.target.places[:2])  # [B, 2], the second perhaps padding
        logits = self.draft.step(unread, last=n - read - 1)  # [B, V]
        self.draft.lengths.copy_(n)
        tokens, laws = [], []
        for i in range(self.k):
            token, law = self.draw(logits, None if u is None else u[:, i])
            tokens.append(token)
            laws += [] if law is None else [law]
            if i < self.k - 1:
                logits = self.draft.step(token[:, None])[:, -1]
        return torch.stack(tokens, 1), laws

    def draw(self, logits: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The next draft [B], and the law [B, V] it was drawn from. Without u it is the likeliest token."""
        if u is None:
            return logits.argmax(-1), None
        law = self.draft_sampling.law(logits)
        return self.inside(pick_by_page(law, u)), law

    def judge(
        self, logits: Tensor, drafted: Tensor, laws: Sequence[Tensor], u: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """How many drafts pass [B], the token after them [B], what target and draft gave each draft [B, 2k], and
        whether there was no NaN or ∞."""
        q = torch.stack(laws, 1) if laws else None  # [B, k, V]
        q_drafted = at(q, drafted) if laws else torch.ones_like(drafted)
        if u is None:
            best = logits.argmax(-1)  # [B, k + 1]
            p_drafted, sound = best[:, :-1] == drafted, finite(logits)
            accepted = p_drafted.long().cumprod(-1).sum(-1)
            token = best.gather(1, accepted[:, None])[:, 0]
        else:
            p = self.sampling.law(logits)  # [B, k + 1, V]
            p_drafted, sound = at(p[:, :-1], drafted), finite(p) if q is None else finite(p) & finite(q)
            accepted, token = chain_batch(p, q, drafted, None, u, pick=pick_by_page)
            token = self.inside(token)
        return accepted, token, torch.cat([p_drafted.double(), q_drafted.double()], 1), sound

    def inside(self, tokens: Tensor) -> Tensor:
        """A law of NaN picks a token that does not exist, and its embedding would end a GPU's work for good."""
        return tokens.clamp(max=self.target.config.vocab_size - 1)

    def uniforms(self, count: int) -> Tensor:
        shape = (self.target.batch, count)
        return torch.rand(shape, generator=self.generator, dtype=torch.float64, device=self.target.device)

    @on_the_device
    def history(self, row: int = 0, first: int = 0) -> list[Cycle]:
        """The cycles of a row from number `first` on, without their times: a launch has no parts."""
        end, k, committed = int(self.cycles), self.k, self.fetched[row]
        lines = zip(self.log[first:end, row].tolist(), self.chances[first:end, row].tolist(), strict=True)
        cycles = []
        for (*drafted, token, accepted), chances in reversed(list(lines)):
            committed -= accepted + 1
            cycles.append(
                Cycle(drafted, None, chances[:k], chances[k:], list(range(accepted)), token, bonus=accepted == k,
                      kept=accepted + 1, committed=committed)
            )  # fmt: skip
        return cycles[::-1]
