"""Trained heads on disk: Medusa, EAGLE, MTP and DFlash are loaded and saved the same way (load/heads.py has the files).

What heads borrow from their target is not stored: its embedding, and the rows of its LM head for `head_ids`.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from ..load.handle import Model
from ..load.heads import fill, find_heads, heads_folder, heads_for, is_public, save_heads


class StoredHead(nn.Module):
    """A subclass has `kind`, what its folders say; `shape`, the settings that make another one like it, and `made`,
    which makes it; and `published`, if it can read what others store: called with target, folder and class."""

    kind: str
    published = None
    borrows = True  # whether its rows are the target's own, so that more tokens cost no weights
    head_ids: Tensor | None  # [v], the tokens that it can propose (None: all) …
    head: Tensor  # … and the LM head's rows for them [v, d]

    @classmethod
    def load(cls, target: Model, source: str | Path | None = None) -> StoredHead:
        """A stored head, on the target's device and in its precision: a folder or a hub id, of ours or published; None:
        the one that ships with minispec."""
        folder = heads_folder(source)
        if cls.published and is_public(folder):
            return cls.published(target, folder, cls)
        folder, settings = find_heads(target, cls.kind, folder)
        head = cls.made(target, settings).to(target.device, target.dtype)
        fill(head, folder)
        if head.borrows:
            head.borrow(target)  # only now it is known which rows
        head.accuracy = settings.get("accuracy")
        return head

    def save(self, target: Model, folder: str | Path, bits: int | None = 8) -> None:
        save_heads(self, folder, heads_for(target, self.kind) | self.shape | {"accuracy": self.accuracy}, bits)

    def borrow(self, target: Model) -> None:
        """Take the rows of the target's LM head that `head_ids` name."""
        rows = target.transformer.lm_head.weight.detach()  # [V, d]
        rows = rows if self.head_ids is None else rows[self.head_ids.to(rows.device)]  # [v, d]
        self.register_buffer("head", rows.to(target.dtype), persistent=False)  # moves along, but is not stored
