"""Set 17, the coding round, its other five functions: n-grams, stop strings, EAGLE's inputs, cache sizes, top-p."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .exercise import Complaint, exercise, pair
from .show import is_number, kind, plain

# ---- 17.ngram_proposer ----------------------------------------------------------------------------------------------


def ngram_proposer(tokens, n, k, *, first=False, itself=False, shift=0, future=False):
    seen, drafts = {}, []  # the last n tokens → where the token after them stands
    for end in range(1, len(tokens) + 1):
        key = tuple(tokens[max(0, end - n) : end])
        if itself:
            seen[key] = end
        start = seen.get(key) if len(key) == n else None
        known = len(tokens) if future else end
        drafts.append([] if start is None else list(tokens[start - shift : min(start - shift + k, known)]))
        if len(key) == n and not (first and key in seen):
            seen[key] = end
    return drafts


def observe_lists(answer, **case):
    found = answer(*case.values())
    if not isinstance(found, (list, tuple)) or not all(isinstance(draft, (list, tuple)) for draft in found):
        raise Complaint(f"return one list of tokens for each token of the input; yours is {kind(found)}.")
    return {"drafts": [[int(t) for t in draft] for draft in found]}


def quick_enough(answer) -> None:
    """The last test: the time per token must not grow with the sequence. The bound is some thirty times what a table
    takes, and it is missed only by an answer that is too slow twice."""
    for length, most in ((2000, 0.08), (1000, 0.025)):
        before = answer.spent()
        drafts = answer(list(range(length)), 2, 3)  # no token comes twice, so that a search finds nothing
        if answer.spent() - before < most:
            return
        if len(drafts) != length:
            raise Complaint(f"all cases are right, but for {length} tokens you return {len(drafts)} lists.")
    raise Complaint(
        "all cases are right, but the time per token grows with the sequence: 1,000 tokens that are all different "
        f"took {answer.spent() - before:.2f} seconds. Does your function search through what came before? Remember "
        "where the last n tokens were, in a dictionary."
    )


NGRAM = exercise(
    "17.ngram_proposer",
    title="an n-gram proposer in constant time per token",
    level="M",
    minutes=25,
    points=2,
    hints=(
        "Searching the whole sequence for every token costs O(L) each. What could you remember while the tokens "
        "come, so "
        "that the last n of them lead straight to what followed their previous occurrence?",
        "A dictionary from the last n tokens to the position after them. Look it up first and store the current "
        "position afterwards, so that the sequence never finds itself; the latest occurrence overwrites older ones.",
        "At every prefix: the key is its last n tokens. If the dictionary knows it, copy up to k tokens from the "
        "position found, never beyond the end of the prefix; if not, the draft is empty. Only then store the end of "
        "this prefix under the key.",
    ),
    code="minispec.drafters.ngram.NGram",
    reference=ngram_proposer,
    observe=observe_lists,
    trial=lambda: quick_enough,
    cases=[
        dict(tokens=[1, 2, 1], n=1, k=2),
        dict(tokens=[1, 2, 3, 1, 2], n=2, k=2),
        dict(tokens=[1, 2, 1, 3, 1], n=1, k=2),
        dict(tokens=[5, 6, 7, 5, 6, 8, 5, 6], n=2, k=3),
    ],
)


@NGRAM.mutant
def oldest_match(*case):
    """You propose what followed the first occurrence. Recent text is the better guide: let later occurrences overwrite
    earlier ones."""
    return ngram_proposer(*case, first=True)


@NGRAM.mutant
def finds_itself(*case):
    """You store the current n-gram before you look it up, so it finds itself, and nothing follows it. Look up first."""
    return ngram_proposer(*case, itself=True)


@NGRAM.mutant
def proposes_the_match(*case):
    """Your draft begins with the last token of the match. Propose what came after the match."""
    return ngram_proposer(*case, shift=1)


@NGRAM.mutant
def looks_ahead(*case):
    """Your drafts contain tokens that have not come yet. After `end` tokens only tokens[:end] are known, so a draft may
    be shorter than k."""
    return ngram_proposer(*case, future=True)


# ---- 17.stop_strings ------------------------------------------------------------------------------------------------


def stop_strings(pieces, stops, *, hold=True, keep=False, flush=True, within=False, longest=True):
    emitted, held = [], ""
    for piece in pieces:
        text = piece if within else held + piece
        found = [(text.find(stop), stop) for stop in stops if stop in text]
        if found:
            at, stop = min(found)
            return [*emitted, text[: at + len(stop) * keep]], True
        sizes = range(min(len(text), max(map(len, stops), default=1) - 1), 0, -1) if longest else (1,)
        tail = next((n for n in sizes if hold and any(stop.startswith(text[-n:]) for stop in stops)), 0)
        tail = min(tail, len(text))
        emitted.append(text[: len(text) - tail])
        held = text[len(text) - tail :]
    return [*emitted, held] if flush else emitted, False


def observe_stops(answer, **case):
    emitted, stopped = pair(answer(*case.values()), "the texts to emit and whether a stop string came")
    if not isinstance(emitted, (list, tuple)) or not all(isinstance(text, str) for text in emitted):
        raise Complaint(f"the texts should be a list of strings; yours is {kind(emitted)}.")
    return {"emitted": list(emitted), "stopped": bool(stopped)}


STOPS = exercise(
    "17.stop_strings",
    title="stop strings over a stream of pieces",
    level="M",
    minutes=25,
    points=2,
    hints=(
        "A stop string can be spread over several pieces. Which part of what you have could be the beginning of "
        "one, and "
        "must not be sent yet?",
        "Hold back the longest end of the text that is the beginning of a stop string. With the next piece, put "
        "the two "
        "together and look again. At the end of the stream, send what is held.",
        "Join what is held with the piece. A stop inside: emit what stands before the earliest one, and you are "
        "done. Otherwise find the longest end of the text that some stop begins with, at most one character shorter"
        " than the longest stop: hold it, emit the rest.",
    ),
    code="minispec.serving.engine.Engine",
    reference=stop_strings,
    observe=observe_stops,
    cases=[
        dict(pieces=["ab", "c"], stops=["x"]),
        dict(pieces=["ab", "STOP", "c"], stops=["STOP"]),
        dict(pieces=["abS", "TO", "Pc"], stops=["STOP"]),
        dict(pieces=["aS", "b"], stops=["STOP"]),
        dict(pieces=["aS", "T"], stops=["STOP"]),
        dict(pieces=["a<", "|e", "nd"], stops=["<|end", "|e"]),
    ],
)


@STOPS.mutant
def sends_at_once(pieces, stops):
    """You send every piece at once. The beginning of a stop string is then with the user before you know that it is
    one. Hold back the longest end of the text that begins a stop string."""
    emitted, sent, text = [], 0, ""
    for piece in pieces:
        text += piece
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return [*emitted, text[sent : max(sent, min(found))]], True
        emitted.append(text[sent:])
        sent = len(text)
    return [*emitted, ""], False


@STOPS.mutant
def only_within_a_piece(*case):
    """You look for stop strings in each piece alone, so one that is spread over two pieces is missed. Put what you hold
    in front of the next piece."""
    return stop_strings(*case, within=True, hold=False)


@STOPS.mutant
def sends_the_stop_string(*case):
    """You send the stop string itself. The output ends before it."""
    return stop_strings(*case, keep=True)


@STOPS.mutant
def loses_what_is_held(*case):
    """When the stream ends, what you hold back is lost. No stop string came, so send it: one more text at the end."""
    return stop_strings(*case, flush=False)


@STOPS.mutant
def no_last_text_where_nothing_is_held(pieces, stops):
    """Where no stop string comes and nothing is held at the end, one text is missing: the last one, which is empty
    then. Without a stop there is always one text more than pieces."""
    emitted, stopped = stop_strings(pieces, stops)
    return (emitted if stopped or emitted[-1] else emitted[:-1]), stopped


@STOPS.mutant
def joins_the_end_to_the_last_text(pieces, stops):
    """At the end of the stream you add what is held to the text of the last piece. That one is sent already: what was
    held is one more text."""
    emitted, stopped = stop_strings(pieces, stops)
    return (emitted if stopped or len(emitted) < 2 else [*emitted[:-2], emitted[-2] + emitted[-1]]), stopped


@STOPS.mutant
def first_in_the_list(pieces, stops):
    """If several stop strings are in the text you end before the one that is first in the list of stops. The output
    ends before the one that is first in the text: take the smallest position."""
    emitted, held = [], ""
    for piece in pieces:
        text = held + piece
        if found := [text.find(stop) for stop in stops if stop in text]:
            return [*emitted, text[: found[0]]], True
        emitted.append(stop_strings([text], stops)[0][0])
        held = text[len(emitted[-1]) :]
    return [*emitted, held], False


@STOPS.mutant
def holds_one_character(*case):
    """You hold back one character at most. After "ST" of "STOP" both have to wait: hold the longest end that begins a
    stop string."""
    return stop_strings(*case, longest=False)


# ---- 17.shifted_eagle -----------------------------------------------------------------------------------------------


def shifted_eagle(hidden, tokens, embed, *, token=1, label=2, swapped=False):
    n = len(tokens) - 2
    parts = [hidden[:n], embed[tokens[token : token + n]]]
    return torch.cat(parts[::-1] if swapped else parts, dim=1), tokens[label : label + n]


def observe_eagle(answer, **case):
    inputs, labels = pair(answer(*case.values()), "the inputs and the labels")
    for value, what in ((inputs, "inputs"), (labels, "labels")):
        if not isinstance(value, Tensor):
            raise Complaint(f"the {what} should be a tensor; yours is {kind(value)}.")
    return {"inputs": inputs.double(), "labels": labels}


def sequence(hidden: list[list[float]], tokens: list[int], embed: list[list[float]]) -> dict:
    return dict(hidden=torch.tensor(hidden).double(), tokens=torch.tensor(tokens), embed=torch.tensor(embed).double())


EAGLE = exercise(
    "17.shifted_eagle",
    title="find the shift in an EAGLE head's training data",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "At inference the head knows the target's hidden state at position i, and the token that was sampled "
        "from it. At "
        "which position does that token stand?",
        "The hidden state at i predicts token i + 1, which is sampled and given to the head. The head then "
        "predicts what "
        "comes after that: token i + 2.",
        "The last two tokens have no pair (they lack a label, or a next token). Hidden state i is joined, along the"
        " features, with the embedding of token i + 1, and the label of the pair is token i + 2.",
    ),
    code="minispec.drafters.eagle.Eagle",
    reference=shifted_eagle,
    observe=observe_eagle,
    cases=[
        sequence([[0.1], [0.2], [0.3]], [0, 1, 2], [[1.0], [2.0], [3.0]]),
        sequence([[0.1], [0.2], [0.3], [0.4]], [2, 0, 1, 0], [[1.0], [2.0], [3.0]]),
        sequence([[0.1, 0.5], [0.2, 0.6], [0.3, 0.7], [0.4, 0.8]], [1, 0, 2, 1], [[1.0, 9.0], [2.0, 8.0], [3.0, 7.0]]),
    ],
)


@EAGLE.mutant
def unshifted_token(*case):
    """Hidden state and token come from the same position. The hidden state has seen that token already, so the head
    learns nothing about what was sampled: pair hidden state i with token i + 1."""
    return shifted_eagle(*case, token=0)


@EAGLE.mutant
def label_is_the_input(*case):
    """Your label is the token that the head is given. It learns to copy, the loss falls to zero and nothing is ever
    accepted. The label is the token after it."""
    return shifted_eagle(*case, label=1)


@EAGLE.mutant
def sees_the_answer(*case):
    """You give the head token i + 2, which is its label. At inference it does not exist yet. Give it token i + 1."""
    return shifted_eagle(*case, token=2)


@EAGLE.mutant
def token_before_hidden(*case):
    """Your embedding comes before the hidden state. The weights of a trained head expect the hidden state first."""
    return shifted_eagle(*case, swapped=True)


# ---- 17.kv_size -----------------------------------------------------------------------------------------------------


def kv_size(
    layers, kv_heads, head_dim, latent, rope, bits, group, tokens, *, both=2, scales=True, always=False, whole=True
):
    values = latent + rope if latent else both * kv_heads * head_dim  # of one token in one layer
    quantised = scales and (bits < 16 or always)
    scale_bytes = 2 * (math.ceil(values / group) if whole else values / group) if quantised else 0
    return tokens * layers * (values * bits / 8 + scale_bytes)


def observe_number(answer, **case):
    found = plain(answer(*case.values()))
    if not is_number(found):
        raise Complaint(f"return a number of bytes; yours is {kind(found)}.")
    return float(found)


def cache(layers=2, kv_heads=2, head_dim=8, latent=0, rope=0, bits=16, group=32, tokens=1) -> dict:
    return dict(
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        latent=latent,
        rope=rope,
        bits=bits,
        group=group,
        tokens=tokens,
    )


SIZE = exercise(
    "17.kv_size",
    title="the size of a KV cache with GQA, MLA and quantisation",
    level="E",
    minutes=15,
    points=2,
    hints=(
        "How many numbers does one token leave in one layer? With grouped queries there are keys and values of "
        "kv_heads "
        "heads; with MLA there is one compressed vector for both, and a small one for the positions.",
        "GQA: 2 · kv_heads · head_dim. MLA: latent + rope, without the 2. Multiply by bits / 8. Below 16 bits "
        "every group "
        "of values has a scale of 2 bytes; the last group may be shorter.",
        "values = latent + rope if latent else 2 · kv_heads · head_dim; per layer values · bits / 8, plus 2 · "
        "ceil(values "
        "/ group) if bits < 16; times layers and tokens.",
    ),
    code="minispec.theory.kv_bytes_per_token",
    reference=kv_size,
    observe=observe_number,
    cases=[
        cache(),
        cache(layers=80, kv_heads=8, head_dim=128, tokens=4096),
        cache(bits=8),
        cache(bits=4, group=24),
        cache(latent=16, rope=4),
        cache(layers=61, kv_heads=128, head_dim=128, latent=512, rope=64, bits=8, group=128, tokens=100),
    ],
)


@SIZE.mutant
def keys_only(*case):
    """You count one vector per head. A token leaves a key and a value: multiply by 2."""
    return kv_size(*case, both=1)


@SIZE.mutant
def no_scales(*case):
    """You leave the scales out. Below 16 bits every group of values has a scale of 2 bytes; at 4 bits and groups of 32
    that is an eighth more."""
    return kv_size(*case, scales=False)


@SIZE.mutant
def scales_of_full_groups(layers, kv_heads, head_dim, latent, rope, bits, group, tokens):
    """You round the number of groups down. The last group may be shorter, and it has a scale as well: round up."""
    values = latent + rope if latent else 2 * kv_heads * head_dim
    return tokens * layers * (values * bits / 8 + (2 * (values // group) if bits < 16 else 0))


@SIZE.mutant
def scales_for_all(*case):
    """You add scales at 16 bits too. Values that are not quantised need none."""
    return kv_size(*case, always=True)


@SIZE.mutant
def latent_twice(layers, kv_heads, head_dim, latent, rope, bits, group, tokens):
    """You double the latent vector. In MLA keys and values are both computed from the one vector that is cached, so
    there is no factor 2."""
    return kv_size(layers, kv_heads, head_dim, 2 * latent, 2 * rope, bits, group, tokens)


@SIZE.mutant
def forgets_rope(layers, kv_heads, head_dim, latent, rope, bits, group, tokens):
    """You leave out the part of the key that carries the position. MLA caches it beside the latent: latent + rope."""
    return kv_size(layers, kv_heads, head_dim, latent, 0, bits, group, tokens)


# ---- 17.top_p -------------------------------------------------------------------------------------------------------


def top_p(p, limit, start, topk, *, everything=False, crossing=True, normal=True, once=False):
    k = len(p) if everything else min(start, len(p))
    values, ids = topk(p, k)
    while values.sum() < limit and k < len(p) and not once:
        k = min(2 * k, len(p))
        values, ids = topk(p, k)
    before = values.cumsum(0) - values  # [k]: what is in front of each
    keep = before < limit if crossing else before + values <= limit
    kept = torch.zeros_like(p)
    kept[ids[keep]] = values[keep]
    return kept / kept.sum() if normal else kept


MOST_ASKED = 50  # a vocabulary is doubled to in 17 steps


class TopK:
    """topk(p, k): the k largest probabilities, largest first, and their tokens. It counts."""

    def __init__(self):
        self.asked: list[int] = []

    def __call__(self, p: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if not isinstance(k, int) or not 1 <= k <= len(p):
            raise Complaint(f"you ask topk for {k!r} of {len(p)} tokens: ask for a whole number from 1 to {len(p)}.")
        if len(self.asked) >= MOST_ASKED:
            raise Complaint(f"you ask topk {MOST_ASKED} times. Does your loop end when all tokens were asked for?")
        self.asked.append(k)
        order = sorted(range(len(p)), key=lambda i: (-float(p[i]), i))[:k]
        return p[order], torch.tensor(order)


def observe_top_p(answer, **case):
    topk = TopK()
    found = answer(*case.values(), topk)
    if not isinstance(found, Tensor):
        raise Complaint(f"return the truncated distribution, a tensor [V]; yours is {kind(found)}.")
    return {"distribution": found.double(), "asked of topk": topk.asked}


def over(probs: list[float], limit: float, start: int) -> dict:
    return dict(p=torch.tensor(probs).double(), limit=limit, start=start)


TOP_P = exercise(
    "17.top_p",
    title="top-p sampling without sorting the whole vocabulary",
    level="M",
    minutes=25,
    points=2,
    hints=(
        "The kept tokens are usually few. How many of the largest do you have to look at before you know that they "
        "suffice, and what do you do if they do not?",
        "Ask topk for `start` tokens. If their probabilities do not reach `limit`, ask for twice as many, and so "
        "on, at "
        "most all. Then keep every token whose predecessors have less than `limit` together, and divide by the sum.",
        "Double k, at most to the whole vocabulary, until the k largest probabilities sum to the limit or "
        "everything is taken. Then a token stays if the sum of those before it, its own not counted, is below the "
        "limit.",
    ),
    code="minispec.sampling.Sampling",
    reference=top_p,
    observe=observe_top_p,
    cases=[
        over([0.25, 0.5, 0.125, 0.125], 0.5, 2),
        over([0.25, 0.5, 0.125, 0.125], 0.7, 2),
        over([0.125, 0.125, 0.25, 0.25, 0.25], 0.8, 2),
        over([0.125] * 8, 0.6, 1),
        over([0.5, 0.25, 0.25], 1.0, 1),
    ],
)


@TOP_P.mutant
def sorts_everything(*case):
    """You ask for the whole vocabulary. A hundred thousand tokens are then sorted for the sake of a few: begin with
    `start` and double."""
    return top_p(*case, everything=True)


@TOP_P.mutant
def drops_the_crossing_token(*case):
    """You drop the token with which the sum passes the limit. It belongs to the set: keep tokens until the limit is
    reached."""
    return top_p(*case, crossing=False)


@TOP_P.mutant
def drops_the_token_that_reaches(p, limit, start, topk):
    """You keep tokens while their sum is below the limit, so the token that reaches it is lost. It belongs to the set:
    keep a token if the sum of those before it is below the limit."""
    k = min(start, len(p))
    values, ids = topk(p, k)
    while values.sum() < limit and k < len(p):
        k = min(2 * k, len(p))
        values, ids = topk(p, k)
    n = max(1, int((values.cumsum(0) < limit).sum()))
    return torch.zeros_like(p).index_put((ids[:n],), values[:n] / values[:n].sum())


@TOP_P.mutant
def not_normalised(*case):
    """The probabilities that you return do not sum to 1. Divide by the sum of those that are kept."""
    return top_p(*case, normal=False)


@TOP_P.mutant
def never_doubles(*case):
    """You look at `start` tokens and no more. Where their probabilities do not reach the limit, ask for twice as
    many."""
    return top_p(*case, once=True)
