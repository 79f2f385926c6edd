"""What a drafter is: something that proposes tokens for a target to verify, be it a model, a lookup table or trained
heads. The verifier does not care, as long as `Draft.probs` is the distribution that was really sampled from."""

from torch import Tensor

from ..processors.drafts import without_impossible
from ..sequence import NO_DRAFT, Sequence
from ..tree import Draft, Scratch, cut  # noqa: F401  a part of the protocol
from ..verify import check_draft

BESIDE: dict = {}  # kind of device → how to work beside the target's pass there: a context (gpu/ fills it)
FOR_MANY: dict[type, type] = {}  # drafter → what drafts in its place for many sequences by one launch; gpu/ fills it


class Drafter:
    """The protocol. Adding a drafter is adding one file with one subclass."""

    hidden_layers: tuple[int, ...] = ()  # ask for the target's residual stream after these many layers
    scratch_slots: int = 0  # tokens beside the draft that its pass may have to process
    tree: bool = False  # True: drafts may be trees (Draft.parents)
    lossless: bool = True  # False: judged by verify.typical, and what comes out no longer follows the target
    captured = None  # what drafts in its place, once `capture` has been called: of FOR_MANY

    def fit(self, target) -> None:
        """Refuse a target that it cannot draft for, before any work. A drafter may also adapt to one."""

    def max_tree_nodes(self, k: int) -> int:
        """The most nodes that a draft of depth k can have: a chain has k, a tree more, a deeper one never fewer."""
        return k

    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        """A draft for every sequence, up to k tokens deep."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it proposes")

    def read_prompts(self, sequences: list[Sequence]) -> None:
        """The target is processing these prompts. Who reads them now need not do it before the first drafts, when
        everybody would wait for it."""

    def while_verifying(self, sequences: list[Sequence], drafts: list[Draft]) -> None:
        """The target's pass over these drafts is under way: launched, and on a GPU not waited for yet. What is done
        here takes time of its own only as far as it outlasts the pass. (Not called by captured whole cycles.)"""

    def settle(self, id: int, path: list[int], emitted: int, scratch: Tensor | None = None) -> None:
        """The cycle is over: these nodes were accepted, and this token was emitted after them. `scratch` holds the
        target's logits [s, V] at the draft's scratch tokens. Also called where nothing was drafted (by an engine only
        if a draft was asked for), but not for a sequence that has ended."""

    def rewind(self, id: int, length: int) -> None:
        """Only the first `length` tokens of the sequence still hold: the target of a cascade has rejected the rest, or
        an engine has preempted the request or failed (0). Starting afresh is always right; override it where less will
        do."""
        self.forget(id)

    def forget(self, id: int) -> None:
        """The sequence has ended; drop what was kept for it."""

    def capture(self) -> None:
        """An engine that captures its passes has drafting captured, too. Called before any sequence."""
        kind = in_place_of(self, FOR_MANY)
        if self.captured is None and kind is not None and kind.takes(self):
            self.captured = kind(self)

    def release(self) -> None:
        """An engine has been shut down: give back what was taken for captured drafts, unless another one's sequences
        are there. It is taken anew when it is needed again."""
        if self.captured is not None:
            self.captured.release()


def in_place_of(drafter: Drafter, table: dict[type, type]) -> type | None:
    """What the table has in this drafter's place, or in that of a base class, unless a subclass has anything of its own
    but how it is made and shown: it would never be called."""
    for kind in type(drafter).__mro__:
        if kind in table:
            return table[kind]
        if not all(name.startswith("__") for name in vars(kind)):
            return None
    return None


def propose(drafter: Drafter, sequences: list[Sequence], k: int, vocab_size: int, depths: list[int]) -> list[Draft]:
    """One draft per sequence, none deeper than its depth, k at the most."""
    if k < 1:
        return [NO_DRAFT] * len(sequences)
    drafts = drafter.propose(sequences, k)
    if len(drafts) != len(sequences):
        raise ValueError(f"{drafter!r} made {len(drafts)} drafts for {len(sequences)} sequences: return one for each")
    kept = []
    for draft, sequence, depth in zip(drafts, sequences, depths, strict=True):
        sequence.shown()
        check_draft(draft, vocab_size)
        # Tokens that were not sampled and are sure to be rejected may go: which these are is no matter of chance.
        kept.append(cut(without_impossible(draft, sequence), depth))
    return kept
