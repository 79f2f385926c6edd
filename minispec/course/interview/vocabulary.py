"""Words as the matcher sees them: what is filler, which words say the same, and what is left of a word as its stem."""

from __future__ import annotations

import re

FILLER = set(
    """a an and are as at be because been before but by can could do does each else for from get given had has have how
    i if in into is it its just like may me more most much must my no not of on one only or other out over per
    same so some such than that the their them then there these they this those though to too two up use uses used very
    was way we were what when where whether which while who why will with without would you your about after all also
    any both even every few here itself many same still until well yes rather instead something nothing
    says say said names name knows know explains explain relates sees
    separates asks mentions quotes derives derive states counts notes points adds gives give sets keeps considers
    consider distinguishes argues tells shows show gets makes make take takes come comes either now should put puts
    want wants actually really need needs needed able first second right thing things case cases
    """.split()
)
# Names of one thing, as in docs/glossary.md; the first stands for all.
SYNONYMS = (
    ("memory-bound", "memory bound", "bandwidth-bound", "bandwidth bound", "bandwidth-limited", "limited by bandwidth",
     "limited by memory bandwidth"),
    ("compute-bound", "compute bound", "limited by compute", "limited by arithmetic"),
    ("weights", "parameters", "params", "weight"),
    ("cache", "kv cache", "kv-cache", "key-value cache", "keys and values"),
    ("drafter", "draft model", "proposer", "assistant model", "draft head"),
    ("draft", "speculative tokens", "draft tokens", "proposal", "proposed tokens"),
    ("target", "large model", "big model", "main model", "verifier model"),
    ("acceptance", "alpha", "α", "acceptance rate"),
    ("residual", "recovered token", "resample", "correction", "corrected"),
    ("rewind", "roll back", "rollback", "crop", "discard"),
    ("prefix caching", "prefix cache", "shared prefix", "shared prefixes"),
    ("ridge point", "ops:byte"),
    ("ttft", "time to first token", "first-token latency"),
    ("tpot", "itl", "time per token", "time per output token", "inter-token latency"),
    ("distribution", "probabilities", "probs"),
    ("exact", "lossless", "losslessness", "unbiased"),
    ("speed-up", "speedup", "speed up", "faster"),
    ("roofline", "bytes over bandwidth"),
    ("token budget", "max_num_batched_tokens", "num_batched_tokens"),
    ("continuous batching", "in-flight batching", "iteration-level scheduling"),
    ("quantised", "quantized", "int8", "int4", "fp8", "nvfp4"),
    ("expert", "moe", "mixture of experts"),
    ("vocabulary", "vocab"),
    ("measure", "benchmark", "profile", "profiled"),
    ("batch", "concurrency", "load"),
)  # fmt: skip
# Words that say the same in an answer, whatever their form; the first stands for all. Loose on purpose: a word that
# many others stand for is common, and what is common weighs little (matcher.py).
ALIKE = """
less fewer lower low fall falls fell shrink shrinks reduce reduces smaller drop drops decrease cut cheaper halve loses
more higher high rise rises grow grows increase increases larger large big raise raises
slow slower loss lose hurt hurts worse
speed fast faster gain gains win wins help helps sooner benefit
cost costs expensive overhead price
bias biased wrong skew skewed lean
emit emitted generate generated produce produced output outputs completion
verify verification check checks judge judges score scores
read reads fetch fetching
store stored keep kept hold holds save saves
discard remove removed free freed trim crop rewind undo undone back cheap
gpu gpus device devices card cards rank ranks
request requests sequence sequences user users
replace replaced replacement correction residual resample
choose chooses pick select prefer prefers
node server machine host
test tests evaluate evaluation
split slice shard spread splits
same equal equals identical unchanged agree
different differ differs another changes change mismatch inconsistent inconsistency
guess propose proposes proposed draft drafts drafted
step steps cycle cycles iteration
load traffic batch concurrency
memory bytes bandwidth
single alone
several many multiple
average mean expected
quality accuracy
arithmetic flops compute
wait waits idle
communication all-reduce all-to-all exchange
slot slots position positions
block blocks page pages
prompt prompts prefill
sample sampled samples sampling
prediction predictions predicts distribution distributions logits probabilities
paused preempt preempted preemption evict evicted
reuse reused share shared sharing
error errors errs
values grid levels
depends depend condition conditions
formula inequality equation
example instance
automatic automatically itself
allocate allocated allocation reserve reserved
busy busiest hot hottest
imbalance uneven
stale staleness outdated drift
vocabulary lm
latency delay
monitor watch watches track alert
recompute recomputed replay
noise variance
notice noticed see
improve improves shorten better
"""
ENDINGS = """ations ation ments ment ness ings ing ions ion ies ally edly ly ers est er ed es s e""".split()
SYMBOLS = "kcvpqαβγ"  # the only words of one letter


def stem(word: str) -> str:
    """verify, verifies and verification become one: endings off, then the first six letters."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + "i" * (ending == "ies")
            break
    return re.sub("y$", "i", word)[:6]


FIRST = {other: first for first, *others in SYNONYMS for other in others}
NAMES = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, sorted(FIRST, key=len, reverse=True)))})(?!\w)")
STANDS_FOR: dict[str, str] = {}
for line in ALIKE.split("\n"):
    stems = [stem(word) for word in line.split()]
    for each in stems:
        STANDS_FOR.setdefault(each, STANDS_FOR.get(stems[0], stems[0]))


def key_words(text: str) -> dict[str, str]:
    """What each word that is not filler stands for → the word."""
    plain = NAMES.sub(lambda found: FIRST[found[1]], text.lower())
    words = [word for word in re.findall(r"[^\W\d_]+", plain) if len(word) > 1 or word in SYMBOLS]
    stems = [(stem(word), word) for word in words if word not in FILLER]
    return {STANDS_FOR.get(each, each): word for each, word in stems}
