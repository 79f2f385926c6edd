"""The next cycle of an engine's requests, launched before the host has looked at the last one.

After a pass over drafts that are on the device (Buckets.read_drafted), all that the next cycle depends on is there, too:
the drafts, the target's best tokens after each of their nodes, and the hidden states. So one launch can end this cycle
and do the next, for greedy requests, without a look at any number:

    walk       from the root of each tree along the best tokens: the accepted path, and the token after it
    move       the path's keys and values, to the slots right after the certain token
    settle     the drafter gets the hidden states of what was verified, and its lines are moved on: length, how many
               positions are new, how many nodes and how deep its next draft may be, last token
    draft      as in engine_heads.py
    pass       as in buckets.py, over the new drafts, from a sheet with new starts and last tokens

The host meanwhile finds the same paths for itself, and then plans the next step. Only if that asks for what was
launched does it count (serving/ahead.py). Otherwise nothing has happened: keys and values were moved as the host would
have moved them, and what came after them, in the target's memory and in the drafter's, lies past the lengths that the
host knows. The hidden states that it would have kept for the drafter are in `kept`.

A request that has ended is a row whose table is blank: it stays where it is, as padding does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
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
        self.recordings: dict[tuple[int, int, int], Recorded] = {}  # by the rows and tokens of a pass, rows of a draft
        kernels = has_kernels(buckets.device, buckets.dtype)
        self.walk = tree_kernels.walk if kernels else tree_kernels.walk_torch

    def fits(self) -> bool:
        """Whether the drafter's memory has room for two more cycles of everybody: this one and the next."""
        many = self.many
        return max(map(len, many.held.values())) + 2 * (many.k + 1) <= many.capacity

    def launch(self, launch: Launch, tables: Sequence[Sequence[int]]) -> Result:
        """The cycle after the one whose drafts come from `launch`. Tables have the slots for it, however this one ends;
        those of requests that have ended are empty. The result, of all rows, is good until the next launch."""
        if self.out is not self.many.out:
            self._renew()
        buckets, (B, T, _) = self.buckets, self.buckets.shape
        buckets.sent.wait()
        buckets.write_tables(tables)
        buckets.sent.record()
        key = B, T, launch.rows
        if key not in self.recordings:
            self._record(key, launch)
        self.recordings[key]()
        self.begun = self.many.begun
        return buckets.result(B, T, B)

    def stands(self, rows: int) -> bool:
        """Whether nobody has drafted since the last launch, and so many rows need a pass of its size."""
        return self.begun == self.many.begun and rows_of(rows) == self.buckets.shape[0]

    def states(self, row: int, count: int) -> dict[int, Tensor]:
        """The first `count` verified states [count, d] that the last launch found for a row of the pass."""
        first = row * (self.many.k + 1)
        return {n: kept[first : first + count].clone() for n, kept in self.kept.items()}

    @on_the_device
    def _renew(self) -> None:
        """The drafter's memory has grown: what was recorded knows the old one."""
        many, buckets = self.many, self.buckets
        self.out, k = many.out, many.k
        self.recordings.clear()
        rows = len(buckets.sheet)
        self.kept = {n: stream.new_zeros(rows * (k + 1), stream.shape[1]) for n, stream in buckets.streams.items()}
        self.places = torch.arange(max(rows, many.count, k + 1), device=buckets.device)
        # How many nodes a draft can have, by its depth.
        most = [0, *(many.drafter.max_tree_nodes(depth) for depth in range(1, k + 1))]
        self.most = torch.tensor(most, device=buckets.device)

    @on_the_device
    def _record(self, key: tuple[int, int, int], launch: Launch) -> None:
        buckets, many = self.buckets, self.many
        state = [buckets.sheet, buckets.best, *buckets.streams.values(), many.sheet, many.out, *launch.drafts.state()]
        self.recordings[key] = recorded = Recorded(partial(self.work, *key[:2], launch), state)
        if recorded.recordable():
            # To warm up is to work for real, and a path moved twice is lost. With blank tables all rows are padding.
            tables = buckets.table_sheet.clone()
            buckets.table_sheet.fill_(buckets.blank)
            recorded.prepare()
            buckets.table_sheet.copy_(tables)

    # ---- the device's part -----------------------------------------------------------------------------------------

    def work(self, B: int, T: int, launch: Launch) -> None:
        """Nobody looks at a number."""
        buckets, many, k = self.buckets, self.many, self.many.k
        sheet, real = buckets.sheet[:B], buckets.table_sheet[:B, 0] != buckets.blank
        start, _, row, deepest, room, share = sheet[:, :6].long().unbind(1)  # [B] each
        row = torch.where(real, row, -1)  # of the drafter; −1: there is no draft

        # What this cycle came to.
        best = buckets.best[: B * T].view(B, T)
        tokens, parents = many.out[row.clamp(min=0), :, : T - 1].unbind(1)  # [B, T − 1]
        absent = (tokens < 0) | (row < 0)[:, None]
        path, run, kept, token, *_ = self.walk(best, tokens.masked_fill(absent, -2), parents, k)
        self.move(start + 1, path, kept, buckets.table_sheet[:B])
        verified = F.pad(path + 1, (1, 0)).clamp(max=T - 1)  # [B, k + 1]: the certain token, and the path
        counts = self.places[: k + 1] <= kept[:, None]
        sound = ((best.gather(1, verified) >= 0) | ~counts).all(1)  # NaN in one row is to reach no other
        at = self.places[:B, None] * T + verified
        for n, stream in buckets.streams.items():
            states = stream[at.flatten()].masked_fill(~(counts & sound[:, None]).flatten()[:, None], 0)
            self.kept[n][: B * (k + 1)] = states

        # What the next may be: see Scheduler._speculate.
        room = room - (kept + 1)
        depth = torch.minimum(deepest, room).clamp(min=0)
        nodes = torch.minimum(self.most[depth], share)
        depth = torch.minimum(depth, nodes)

        # The lines of the drafter, in the order of its own rows; who is not asked rides along.
        lines = many.sheet[: launch.rows]
        mine = row == self.places[: launch.rows, None]  # [rows, B]
        who = mine.long().argmax(1)  # [rows]
        asked = mine.any(1) & sound[who]
        news = torch.stack([kept + 1, nodes, depth, token], 1)  # [B, 4]
        lines[:, 0] += lines[:, 1]  # of the last draft's new positions it has read
        lines[:, 1:5] = torch.where(asked[:, None], news[who], 0).int()
        lines[:, 5 : 6 + k] = run[who].int()
        lines[:, 6 + k :] = (who[:, None] * (k + 1) + self.places[: k + 1]).int()

        # The lines of the pass. A row that has ended by its length may have no slot to go to.
        sheet[:, 0] = (start + (kept + 1) * (real & (room >= 0))).int()
        sheet[:, 1], sheet[:, 2], sheet[:, 4] = token.int(), row.int(), room.int()
        launch.work(self.kept)
        buckets.work(B, T, (many.out, k))

    def move(self, first: Tensor, path: Tensor, kept: Tensor, tables: Tensor) -> None:
        """Buckets.move on the device: the first `kept` [B] of positions first + path [B, k] go to first, first + 1, …"""
        buckets, size, k = self.buckets, self.buckets.block_size, path.shape[1]
        used = self.places[:k] < kept[:, None]

        def slots(positions: Tensor) -> Tensor:
            positions = positions.masked_fill(~used, 0)
            blocks = tables.gather(1, positions // size).long()
            return torch.where(used, blocks * size + positions % size, buckets.spare * size).flatten()

        source, target = slots(first[:, None] + path), slots(first[:, None] + self.places[:k])
        for memory in buckets.blocks:
            memory[:, target] = memory[:, source]
