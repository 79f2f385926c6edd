"""The next cycle of an engine's requests, launched before the host has looked at the last one.

After a pass over drafts that are on the device (Buckets.read_drafted), all that the next cycle depends on is there: the
drafts, the target's best tokens after each of their nodes, and the hidden states. So for greedy requests the device can
go on by itself, without a look at any number. Three recordings, one after the other:

    end of     walk from the root of each tree along the best tokens: the accepted path, and the token after it. Move
    this       the path's keys and values to the slots right after the certain token, and the hidden states of what was
    cycle      verified to where the drafter reads them. Then write the sheets that the host would have written: for the
               drafter length, new positions, nodes, depth and last token; for the pass starts and last tokens
    draft      Launch.work (engine_heads.py)
    pass       Buckets.work over the new drafts

The host meanwhile finds the same paths for itself, and then plans the next step. Only if that asks for what was
launched does it count (serving/ahead.py). Otherwise nothing has happened: keys and values were moved as the host would
have moved them, what came after them, in the target's memory and in the drafter's, lies past the lengths that the host
knows, and the hidden states that it would have kept for the drafter are here (`states`).

A request that has ended is a row whose table is blank: it stays where it is, as padding does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import tree_kernels
from .buckets import Buckets, Result, rows_of
from .fused import has_kernels
from .record import Recorded, on_the_device

if TYPE_CHECKING:
    from .engine_heads import DraftsForMany, Launch


class Cycles:
    """Launches of the next cycle, over the drafts of `many` and the passes of `buckets`."""

    def __init__(self, many: DraftsForMany, buckets: Buckets):
        self.many, self.buckets, self.out = many, buckets, None
        self.results: dict[tuple[int, int], Result] = {}  # views, by the rows and tokens of a pass
        self.recordings: dict[tuple[int, int, int], Recorded] = {}  # by the rows and tokens of a pass, rows of a draft
        kernels = has_kernels(buckets.device, buckets.dtype)
        self.walk = tree_kernels.walk if kernels else tree_kernels.walk_torch
        self.sound = torch.ones((), dtype=torch.bool, device=buckets.device)  # the host looks for NaN itself

    def fits(self) -> bool:
        """Whether the drafter's memory has room for two more cycles of everybody, this one and the next."""
        many, rows = self.many, self.buckets.shape[0]
        return many.count >= rows and max(map(len, many.held.values())) + 2 * (many.k + 1) <= many.capacity

    def launch(self, launch: Launch, tables: Sequence[Sequence[int]]) -> Result:
        """The cycle after the one whose drafts come from `launch`. Tables have the slots for it, however this one ends;
        those of requests that have ended are empty. The result, all rows end to end, is good until the next launch."""
        many, buckets, (B, T, _) = self.many, self.buckets, self.buckets.shape
        if self.out is not many.out:
            self._renew()
        buckets.sent.wait()
        buckets.write_tables(tables)
        buckets.sent.record()
        key = B, T, launch.rows
        if key not in self.recordings:
            self._record(*key)
        self.recordings[key]()
        launch.recorded()
        self.begun = many.begun
        logits, best, hidden = buckets.launch(buckets.drafted, (B, T, (many.out, many.k)), B)
        if (B, T) not in self.results:
            hidden = {n: states.flatten(0, 1) for n, states in hidden.items()}
            self.results[B, T] = Result(logits.flatten(0, 1), best.flatten(), hidden)
        return self.results[B, T]

    def stands(self, rows: int) -> bool:
        """Whether the last launch can be of use to so many rows: they need a pass of its size, and nobody else has
        drafted since."""
        return self.begun == self.many.begun and rows_of(rows) == self.buckets.shape[0]

    def states(self, row: int, count: int) -> dict[int, Tensor]:
        """The first `count` verified states [count, d] that the last launch found for a row of the pass."""
        first = row * len(self.most_nodes)
        return {n: kept[first : first + count].clone() for n, kept in self.kept.items()}

    @on_the_device
    def _renew(self) -> None:
        """The drafter's memory has grown: what was recorded knows the old one."""
        many, device = self.many, self.buckets.device
        self.recordings.clear()
        self.out, self.places = many.out, torch.arange(max(many.count, many.T), device=device)
        self.kept = {n: torch.zeros_like(states) for n, states in many.states.items()}  # others may draft meanwhile
        # How many nodes a draft can have, by its depth 0 … k.
        self.most_nodes = [0, *(many.drafter.max_tree_nodes(depth) for depth in range(1, many.T))]
        self.most = torch.tensor(self.most_nodes, device=device)

    @on_the_device
    def _record(self, B: int, T: int, rows: int) -> None:
        buckets, many = self.buckets, self.many
        recorded = Recorded(partial(self.end, B, T, rows), [buckets.sheet, many.sheet])
        if recorded.recordable():
            # To warm up is to work for real, and a path moved twice is lost. With blank tables all rows are padding.
            tables = buckets.table_sheet.clone()
            buckets.table_sheet.fill_(buckets.blank)
            recorded.prepare()
            buckets.table_sheet.copy_(tables)
        self.recordings[B, T, rows] = recorded

    # ---- the device's part -----------------------------------------------------------------------------------------

    def end(self, B: int, T: int, rows: int) -> None:
        """Of a cycle of B rows of T tokens, the drafts of which are in the first `rows` rows of the drafter's memory.
        Nobody looks at a number."""
        buckets, many, k = self.buckets, self.many, self.many.k
        sheet, real = buckets.sheet[:B], buckets.table_sheet[:B, 0] != buckets.blank
        start, _, row, deepest, room, share = sheet[:, :6].long().unbind(1)  # [B] each
        row = torch.where(real, row, -1)  # of the drafter; −1: there is no draft

        # What this cycle came to.
        best = buckets.best[: B * T].view(B, T)
        tokens, parents = many.out[row.clamp(min=0), :, : T - 1].unbind(1)  # [B, T − 1]
        absent = (tokens < 0) | (row < 0)[:, None]
        path, verified, run, new, line, _ = self.walk(best, tokens.masked_fill(absent, -2), parents, k, self.sound)
        self.move(start + 1, path, new - 1, buckets.table_sheet[:B])
        verified = verified.clamp(max=T - 1)  # [B, k + 1]: the certain token, and the path
        at = (self.places[:B, None] * T + verified).flatten()
        broken = (best < 0).any(1, keepdim=True).expand_as(verified).reshape(-1, 1)  # NaN would outlive its request
        for n, stream in buckets.streams.items():
            self.kept[n][: len(at)] = many.states[n][: len(at)] = stream[at].masked_fill(broken, 0)

        # What the next may be: see Scheduler._speculate.
        token, room = line[:, -1], room - new
        depth = torch.minimum(deepest, room).clamp(0, k)
        nodes = torch.minimum(self.most[depth], share)
        depth = torch.minimum(depth, nodes)

        # The lines of the drafter, in the order of its own rows; who is not asked rides along.
        lines = many.sheet[:rows]
        mine = row == self.places[:rows, None]  # [rows, B]
        who = mine.int().argmax(1)  # [rows]
        lines[:, 0] += lines[:, 1]  # of the last draft's new positions it has read
        lines[:, 1:5] = torch.stack([new, nodes, depth, token], 1)[who] * mine.any(1, keepdim=True)
        lines[:, 5 : 6 + k] = run[who]
        lines[:, 6 + k :] = who[:, None] * (k + 1) + self.places[: k + 1]

        # The lines of the pass. A row that has ended by its length may have no slot to go to.
        start = start + new * (real & (room >= 0))
        sheet[:, :5] = torch.stack([start, token, row, deepest, room], 1)

    def move(self, first: Tensor, path: Tensor, kept: Tensor, tables: Tensor) -> None:
        """Buckets.move without the host: the first `kept` [B] of first + path [B, k] go to first, first + 1, …"""
        buckets, size, k = self.buckets, self.buckets.block_size, path.shape[1]
        # Both places of each, [B, 2k]; those that do not count go from the spare block to itself.
        used = (self.places[:k] < kept[:, None]).repeat(1, 2)
        places = torch.cat([path, self.places[:k].expand_as(path)], 1) + first[:, None]
        places = places.masked_fill(~used, 0)
        slots = tables.gather(1, places // size) * size + places % size
        source, target = slots.masked_fill(~used, buckets.spare * size).chunk(2, 1)
        for memory in buckets.blocks:
            memory[:, target.flatten()] = memory[:, source.flatten()]
