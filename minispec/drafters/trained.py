"""What Medusa, EAGLE, MTP and DFlash share: a trained head on the target's hidden states, and how one drafts with it.

What heads borrow from their target is not stored: its embedding, and the rows of its LM head for `head_ids`.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from ..load.folder import pack, write_folder
from ..load.head_files import SIZES, fill, find_heads
from ..load.model import Model
from ..sampling import noise_of, noisy
from ..sequence import Sequence
from .base import Draft, Drafter
from .cache import StateCache


class StoredHead(nn.Module):
    """A subclass has `kind`, what its folders say; `shape`, the settings that make another one like it, and `made`,
    which makes it; and `published`, if it can read what others store: called with target, folder and class."""

    kind: str
    published = None
    accuracy: list | None = None  # of its guesses, as measured
    borrows = True  # whether its rows are the target's own, so that more tokens cost no weights
    own: tuple[str, ...] = ("",)  # how the names of the weights begin that its folder holds: all
    head_ids: Tensor | None  # [v], the tokens that it can propose (None: all) …
    head: Tensor  # … and the LM head's rows for them [v, d]

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    @classmethod
    def load(cls, target: Model, source: nn.Module | str | Path | None = None) -> "StoredHead":
        """A stored head, on the target's device and in its precision: a folder or a hub id, of ours or published; None:
        the one that ships with minispec. A head that is here already is given back."""
        if isinstance(source, nn.Module):
            return source
        folder, settings = find_heads(target, cls.kind, source, public=cls.published is not None)
        if "kind" not in settings:
            return cls.published(target, folder, cls)
        folders = [folder]
        if name := settings.get("backbone"):  # the rest of it is stored there
            beside = folder / name
            under, theirs = find_heads(target, "dflash", beside if beside.is_dir() else name)
            folders, settings = [folder, under], theirs | settings
        head = cls.made(target, settings).to(target.device, target.dtype)
        fill(head, *folders)
        if head.borrows:
            head.borrow(target)  # only now it is known which rows
        head.accuracy = settings.get("accuracy")
        return head

    def save(self, target: Model, folder: str | Path, bits: int | None = 8, **measured) -> None:
        """Its own weights, and its settings, plain values: what it is and which target it fits."""
        made_for = {"kind": self.kind, "target": target.name} | {key: getattr(target.config, key) for key in SIZES}
        settings = made_for | self.shape | {"accuracy": self.accuracy} | measured
        tensors = {name: x for name, x in self.state_dict().items() if name.startswith(self.own)}
        write_folder(folder, pack(tensors, bits), settings)

    def borrow(self, target: Model) -> None:
        """Take the rows of the target's LM head that `head_ids` name."""
        rows = target.transformer.lm_head.weight.detach()  # [V, d]
        rows = rows if self.head_ids is None else rows[self.head_ids.to(rows.device)]  # [v, d]
        self.register_buffer("head", rows.to(target.dtype), persistent=False)  # moves along, but is not stored


def with_noise(sequences: list[Sequence], logits: Tensor, ids: Tensor, ahead: Tensor | range) -> Tensor:
    """A head's logits [b, n, v] of the tokens `ids` [v], so many positions `ahead` [n] of the next one: of coupled
    sequences with T · g, so that the best is what a target with these logits would choose."""
    if sequences[0].noise is None or all(c.sampling.greedy for c in sequences):
        return logits
    noise = noise_of(sequences, torch.as_tensor(ahead), logits.device)  # [b, n]
    T = torch.tensor([c.sampling.temperature for c in sequences], device=logits.device)[:, None, None]
    return noisy(logits, T, noise, ids)


class HeadDrafter(Drafter):
    """Draft with a head. A subclass has `draft`, which is `propose` for sequences that are ready."""

    memory: StateCache | None = None  # of a head with layers of its own

    def __init__(self, target: Model, width: int, hidden_layers: tuple[int, ...]):
        """`width` is how many numbers of a hidden state the head takes."""
        c, deepest = target.config, max(hidden_layers)
        if width != c.hidden_size or deepest > c.num_layers:
            takes = f"heads take states of {width} numbers, up to layer {deepest}"
            has = f"target={target.name!r} has {c.hidden_size} and {c.num_layers} layers"
            raise ValueError(f"{takes}, and {has}: make them for this target")
        self.target, self.hidden_layers = target, hidden_layers

    def fit(self, target: Model) -> None:
        for size in SIZES:
            if (own := getattr(self.target.config, size)) != (given := getattr(target.config, size)):
                raise ValueError(f"the drafter was made for {size}={own}, and the target has {given}: give its own")

    def ready(self, sequence: Sequence) -> bool:
        """Whether there is anything to draft from: a prompt of one token has no state yet."""
        return len(sequence.hidden.get(self.hidden_layers[0], ())) > 0

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        ready = [c for c in sequences if k >= 1 and self.ready(c)]
        device = self.captured if self.captured and self.captured.knows(ready) else None
        drafts = dict(zip(ready, (device.propose if device else self.draft)(ready, k) if ready else (), strict=True))
        return [drafts.get(c, Draft([])) for c in sequences]

    def capture(self) -> None:
        if not (self.memory and self.memory.lengths):  # sequences that are under way stay where they are
            super().capture()

    def forget(self, id: int) -> None:
        for memory in (self.memory, self.captured):
            if memory:
                memory.forget(id)
