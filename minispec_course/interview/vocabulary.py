"""Words as the matcher sees them: filler, words that say the same, stems, and whether a word is denied where it stands.

occurrences("I would not measure it")          # measure, denied
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

FILLER = set(
    """a an and are as at be because been before but by can could do does each else for from get given had has have how
    i if in into is it its just like may me more most much must my no not of on one only or other out over per
    same so some such than that the their them then there these they this those though to too two up use uses used very
    was way we were what when where whether which while who why will with without would you your about after all also
    any both even every few here itself many same still until well yes rather instead something nothing
    says say said names name knows know explains explain relates sees
    separates asks mentions quotes derives derive states counts notes points adds gives give sets keeps considers
    consider distinguishes argues tells shows show gets makes make take takes come comes either now should put puts
    want wants actually really need needs needed able first second right thing things case cases ones
    always within already often simply under anything being asked done go goes become becomes possibly otherwise
    against leave leaves ways along plainly exactly re kib mib gib kb mb gb tb ms
    """.split()
)
# Names of one thing, as in docs/glossary.md; the first stands for all.
SYNONYMS = (
    (
        "memory-bound",
        "memory bound",
        "bandwidth-bound",
        "bandwidth bound",
        "bandwidth-limited",
        "limited by bandwidth",
        "limited by memory bandwidth",
    ),
    ("compute-bound", "compute bound", "limited by compute", "limited by arithmetic"),
    ("weights", "parameters", "params", "weight"),
    ("cache", "kv cache", "kv-cache", "key-value cache", "keys and values"),
    ("drafter", "draft model", "proposer", "assistant model", "draft head"),
    ("draft", "speculative tokens", "draft tokens", "proposal", "proposed tokens"),
    ("target", "large model", "big model", "main model", "verifier model"),
    ("acceptance", "alpha", "α", "acceptance rate"),
    ("residual", "recovered token", "resample", "correction", "corrected"),
    ("rewind", "roll back", "rollback", "crop", "discard", "way back"),
    ("prefix caching", "prefix cache", "shared prefix", "shared prefixes"),
    ("ridge point", "ops:byte", "ridge", "knee"),
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
)
# What candidates say for it; the first stands for all.
PHRASES = (
    ("lower bound", "floor"),
    ("penalty", "penalised", "penalized", "penalise", "penalize", "penalties"),
    (
        "switching off",
        "switch off",
        "switches off",
        "switch it off",
        "turn off",
        "turn it off",
        "down to zero",
        "disable",
    ),
    ("canary", "part of the traffic", "share of the traffic", "gradually", "staged rollout"),
    ("past cycles", "running average", "moving average", "ema"),
    ("one-hot", "point mass", "deterministic"),
    ("confidence", "max probability", "max of q", "max q", "top probability"),
    ("consent", "opted-in", "opt-in", "opted in", "opt in"),
    ("dictionary", "dict", "hash map", "hashmap", "lookup table"),
    ("ttft", "first token", "first-token"),
    ("longdraft", "longer drafts", "raise k", "raises k", "raising k", "increase k", "larger k", "draft more"),
    (
        "shortdraft",
        "shorter drafts",
        "shortens drafts",
        "lower k",
        "lowers k",
        "cut k",
        "shrink k",
        "shorten k",
        "shortens k",
        "smaller k",
    ),
    ("plain decoding", "without speculation", "no speculation", "speculation off"),
    ("rejected", "thrown away", "throws away", "throw away"),
    ("waste", "for nothing", "in vain"),
    ("idle", "leaves free", "left over", "spare"),
    ("at once", "in one go", "in one pass"),
    ("mutant", "mutants", "planted bugs", "plant bugs", "plant a bug", "inject bugs", "break it on purpose"),
    ("statistical test", "chi-square", "chi square", "significance test"),
    ("greedy", "temperature 0", "temperature zero"),
    ("training past", "trained longer", "train longer", "overtrain", "over-train"),
    ("deadline", "due time", "due date"),
    ("expectedtokens", "e[n]", "expected number of tokens"),
)
# Words that say the same in an answer, whatever their form; the first stands for all. Loose on purpose: a word that
# many others stand for is common, and what is common weighs little (matcher.py).
ALIKE = """
less fewer lower low shorter fall falls fell shrink shrinks shorten shortens reduce reduces smaller decrease cut halve
more higher high rise rises grow grows increase increases larger large big raise raises
slow slower loss lose hurt hurts worse
speed fast faster gain gains win wins help helps sooner benefit
cost costs expensive overhead price
bias biased wrong skew skewed lean
emit emitted generate generated produce produced output outputs completion
verify verification check checks judge judges score scores
read reads fetch fetching pull pulls stream streaming
store stored keep kept hold holds
discard remove removed trim crop rewind undo undone
free cheap cheaper
gpu gpus device devices card cards rank ranks
request requests sequence sequences
customer customers tenant tenants user users
replace replaced replacement correction residual resample
choose chooses pick select prefer prefers
node server machine
host cpu
move moved moves transfer transfers travel send
serve serving inference
waste wasted wastes
fix fixes repair
test tests tested
evaluate evaluates evaluation
split slice shard spread splits
same equal equals equality identical unchanged agree
different differ differs another mismatch inconsistent inconsistency
change changes changed shift shifts shifted
distinct unique union
neighbouring neighbour consecutive adjacent
guess propose proposes proposed draft drafts drafted
step steps cycle cycles iteration
batch concurrency
memory bytes bandwidth hbm
single alone
end ends ended finish finished
stay stays remain remains
chance chances candidate candidates
looser relax relaxes relaxed
several many multiple
average mean expected averages
quality accuracy
arithmetic flops compute math maths operations
wait waits idle unused
communication all-reduce all-to-all exchange
slot slots position positions
block blocks page pages
prompt prompts prefill
sample sampled samples sampling
prediction predictions predicts distribution distributions logits probabilities
paused preempt preempted preemption evict evicted interrupt interrupted
reuse reused share shared sharing
error errors errs
values grid levels
formula inequality equation
example instance
automatic automatically itself
allocate allocated allocation reserve reserved
busy busiest hot hottest
imbalance uneven
stale staleness outdated drift
latency delay
monitor monitored watch watches track alert log logs logged
recompute recomputed replay
noise variance
notice noticed see
improve improves better
explore explores exploration probe probes
utilisation occupancy
multiply multiplies product products
sum sums
denominator denominators divide divides divided
"""
ENDINGS = """isations isation ications ication ations ation ators ator ates ated ate ments ment ness ings ing ions ion
 ies ally edly ised ises ise ly ers est er ed es s e""".split()
LONGER = {"ings", "ing", "ly"}  # endings that leave four letters at least: paying customers do not make it pay
SYMBOLS = "kcvpqαβγ"  # the only words of one letter
STEM = 8  # letters


def stem(word: str) -> str:
    """verify, verifies and verification become one, and so do quantised and quantization; effective is no effect."""
    word = word.replace("iz", "is")
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= (4 if ending in LONGER else 3):
            word = word[: -len(ending)] + "i" * (ending in ("ies", "ication", "ications"))
            word = re.sub(r"([bdgmnprt])\1$", r"\1", word)
            break
    return re.sub("y$", "i", word)[:STEM]


FIRST = {other: first for first, *others in (*SYNONYMS, *PHRASES) for other in others}
NAMES = "|".join(map(re.escape, sorted(FIRST, key=len, reverse=True)))
STANDS_FOR: dict[str, str] = {}
for line in ALIKE.split("\n"):
    stems = [stem(word) for word in line.split()]
    for each in stems:
        STANDS_FOR.setdefault(each, STANDS_FOR.get(stems[0], stems[0]))

# ---- where words stand ----------------------------------------------------------------------------------------------

ENDS = set(", ; : . ! ? ( ) — – but because since so while whereas although though which if unless when where".split())
OPEN = {"if", "unless", "when", "where", "whether"}  # what comes after it is neither said nor denied
DENIES = set(
    """not never cannot can't don't doesn't didn't isn't aren't won't wouldn't shouldn't couldn't wasn't neither nor
    nothing hardly""".split()
)  # the rest of the clause
LACKS = {"no", "without", "none", "instead of", "rather than", "no longer"}  # the next words
NEXT = 4
UNDOES = set(
    "drop drops delete deletes skip skips ignore ignores avoid refuse forget".split()
)  # unless it is the point
DISMISSES = {"useless", "pointless", "irrelevant", "unnecessary", "only one"}  # all of its clause
WHOLE = re.compile(
    r"\b(?:never|not) (?:\w+ )?(?:say|true|the case|claim|believe|think) that\b|\b(?:false|doubt) that\b"
)
HARMLESS = (
    "not only",
    "not just",
    "no doubt",
    "no matter",
    "not sure",
    "why not",
    "whether or not",
    "nothing but",
    "not least",
    "no more than",
    "no problem",
    "if not",
)
LIST = 4  # words: a clause as short as this, without a verb, goes on with the list before it
VERBS = {"is", "are", "was", "be", "would", "will", "can", "has", "have", "such", "i", "we", "it"}
FIGURE = re.compile(r"(?<![\w-])\d[\d.,]*\s?(?:[%×x]|percent|[kmgtµ]?i?b?s?\b)|(?<![\w-])\d\d|\d\.\d")
FORMULA = re.compile(r"[α-ω\w)]\s?\^\s?[({\w]|\)\s?/\s?\(|[\w\])] ?[=<>≤≥] ?[α-ω\w|(\[\]).]+ ?[−+·*/]")
COMPUTED = {"product": "multiply", "sum": "sum", "ratio": "divide"}
PIECE = re.compile(
    rf"(?P<name>(?<!\w)(?:{NAMES})(?!\w))|(?P<product>\d\s?[*·×]\s?(?=\d))|(?P<sum>\d\s?\+\s?(?=[\d.]))"
    r"|(?P<ratio>(?<=\d)(?: ?/ ?| over | divided by )(?=[\d.]))"
    r"|(?P<pair>instead of|rather than|only one|no longer)\b|(?P<word>[^\W\d_]+(?:'t\b|\d+)?)"
    r"|(?P<end>[,;:.!?()—–](?!\d))"
)


@dataclass(frozen=True)
class Word:
    """A word of a text: what it stands for, as it was written, and whether it is denied."""

    term: str
    written: str
    denied: bool | None  # None: after "if", neither
    undone: bool = False  # denied by a verb such as "drop", which may be what the point is about


@lru_cache(maxsize=16384)
def occurrences(text: str) -> tuple[Word, ...]:
    """Every word that is not filler, in order."""
    lower = text.lower().replace("’", "'")
    for phrase in HARMLESS:
        lower = lower.replace(phrase, " " * len(phrase))
    lower = re.sub(r"\bstep (?:one|two|three|four|five|six|\d)\b", lambda found: " " * len(found[0]), lower)
    found = [Word("formula", "a formula", False)] if FORMULA.search(lower) else []
    found += [Word(stem("figure"), "a number", False)] if FIGURE.search(lower) else []
    clause: list[tuple[str, str]] = []  # (what it stands for, as written) of the current clause
    whole = carried = False
    start = ""
    for piece in [*PIECE.finditer(lower), None]:
        if piece is None or piece["end"] or piece[0] in ENDS:
            lists = carried and len(clause) <= LIST and VERBS.isdisjoint(plain for plain, _ in clause)
            words, carried = _polarity(clause, lists or whole, start in OPEN)
            found += words
            start = "" if piece is None else piece[0]
            carried, clause = carried and start in (",", "("), []
            whole = whole and start not in (".", "!", "?", ";")
            continue
        if WHOLE.match(lower, piece.start()):
            whole = True
        if piece.lastgroup in COMPUTED:
            clause.append((COMPUTED[piece.lastgroup], piece[0].strip()))
        else:
            clause.append((FIRST[piece[0]] if piece["name"] else piece[0], piece[0]))
    return tuple(found)


def _polarity(clause: list[tuple[str, str]], denied: bool, open: bool) -> tuple[list[Word], bool]:
    """The words of a clause; and whether it ends denied, for a list that goes on after a comma."""
    found, undone, lacking = [], False, 0
    plains = [plain for plain, _ in clause]
    whole = any(
        plain in DISMISSES or (plain in DENIES and plains[max(0, i - 1) : i] not in ([], ["and"], ["or"]))
        for i, plain in enumerate(plains)
    )
    for plain, written in clause:
        if plain in DENIES or plain in LACKS:
            denied, lacking = denied or plain in DENIES, NEXT * (plain in LACKS)
            continue
        against = denied or whole or lacking > 0
        for word in re.findall(r"[^\W_]+", plain):
            if word not in FILLER and (len(word) > 1 or word in SYMBOLS):
                each = stem(word)
                found.append(Word(STANDS_FOR.get(each, each), written, None if open else against, undone))
        lacking, undone = lacking - 1, undone or plain in UNDOES
    return found, denied or lacking > 0


LEAD = re.compile(
    r"^(?:chooses|builds|produces|compares|defines|finds|proposes|concludes|suspects|checks|tracks|restricts|treats|"
    r"describes|connects|includes|covers|offers|weighs|discusses|lists|expects|plans|handles|considers|"
    r"looks at|looks for|refers to)\b\s*",
    re.IGNORECASE,
)  # what a candidate does, and does not say
FIGURES = re.compile(r"^(?:computes|evaluates|estimates|calculates|quantifies|sizes)\b", re.IGNORECASE)


def claim(point: str) -> str:
    """A point of a rubric without the verb that tells what to do: "Computes the size" wants a figure, and the size."""
    rest = LEAD.sub("", FIGURES.sub("", point))
    return (rest if rest[:1] != " " else f"a figure for{rest}") if key_words(rest) else point


def key_words(text: str) -> dict[str, str]:
    """What each word that is not filler stands for → the word as it was written."""
    return {word.term: word.written for word in occurrences(text)}
