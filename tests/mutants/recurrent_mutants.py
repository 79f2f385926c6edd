"""Wrong ways to keep the states of recurrent layers: functions for `States.checkpoint` and `States.recall`."""

from functools import wraps

from minispec.recurrent import DEEPEST, States

RECALL = States.recall

# ---- checkpoint(kept, length, blank): the state that a pass goes on from -------------------------------------------


def newest(self, kept, length, blank):
    """The newest state, which has seen rejected tokens."""
    return kept[max(kept)] if length else blank


def not_blank(self, kept, length, blank):
    """A new request goes on from what the last one in its slot has left."""
    return kept[length] if length else kept[max(kept)] if kept else blank


# ---- recall: the states that a pass leaves -------------------------------------------------------------------------


def changed(change):
    """`recall`, after which the state that was kept after n tokens is change(kept, n, blank)."""

    @wraps(change)
    def recall(self, names, lengths, counts, at, layer, *inputs):
        outputs = RECALL(self, names, lengths, counts, at, layer, *inputs)
        for name, length in zip(names, lengths, strict=True):
            kept, blank = self.kept[at, name], layer.blank(inputs[0])
            kept |= {n: change(kept, n, blank) for n in kept if n > length}
        return outputs

    return recall


@changed
def memory_of_the_whole_draft(kept, n, blank):
    return kept[n]._replace(memory=kept[max(kept)].memory)


@changed
def memory_a_token_late(kept, n, blank):
    return kept[n]._replace(memory=kept.get(n - 1, kept[n]).memory)


@changed
def window_of_the_whole_draft(kept, n, blank):
    return kept[n]._replace(window=kept[max(kept)].window)


@changed
def window_a_token_late(kept, n, blank):
    return kept[n]._replace(window=kept.get(n - 1, kept[n] if n > 1 else blank).window)


def padding_advances_the_memory(self, names, lengths, counts, at, layer, *inputs):
    """In a long prompt's pass, of which the last state alone is kept."""
    T, before = inputs[0].shape[1], dict(self.kept)
    outputs = RECALL(self, names, lengths, counts, at, layer, *inputs)
    if T > 1 + DEEPEST:
        padded = States(self.shape)
        padded.kept = before
        RECALL(padded, names, lengths, [T] * len(names), at, layer, *inputs)
        for name, length, count in zip(names, lengths, counts, strict=True):
            kept, end = self.kept[at, name], length + count
            kept[end] = kept[end]._replace(memory=padded.kept[at, name][length + T].memory)
    return outputs
