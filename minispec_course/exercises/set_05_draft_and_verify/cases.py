"""Set 05, draft and verify: the greedy decision, the two caches, the loop."""

import torch

from ..exercise import exercise
from ..fakes import VOCABULARY, ScriptedModel, whole_text, wrong_at
from ..fresh import Draw, fresh
from ..returned import pair, token, tokens


# ---- 05.greedy_verify -----------------------------------------------------------------------------------------------
def greedy_verify(logits, drafted):
    best = logits.argmax(-1).tolist()
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == best[accepted]:
        accepted += 1
    return accepted, best[accepted]


def observe_verdict(answer, logits, drafted):
    accepted, emitted = pair(answer(logits, drafted), "how many draft tokens are accepted and the token after them")
    return {
        "accepted": token(accepted, "the number of accepted draft tokens"),
        "token": emitted if emitted is None else token(emitted),
    }


def preferring(*best, vocabulary=4):
    """Logits [k + 1, V] whose best tokens are these. Not one-hot: the runner-up is close."""
    logits = torch.arange(vocabulary).repeat(len(best), 1) / 10.0
    logits[range(len(best)), list(best)] = 1.0
    return logits


GREEDY_VERIFY = exercise(
    "05.greedy_verify",
    reference=greedy_verify,
    observe=observe_verdict,
    cases=[
        dict(logits=preferring(2, 1), drafted=[3]),
        dict(logits=preferring(2, 1), drafted=[2]),
        dict(logits=preferring(0), drafted=[]),
        dict(logits=preferring(1, 2, 3), drafted=[1, 0]),
        dict(logits=preferring(1, 2, 3, 0), drafted=[0, 2, 3]),
        dict(logits=preferring(3, 0, 2, 1, 2), drafted=[3, 0, 1, 1]),
    ],
)


@GREEDY_VERIFY.wrong_solutions
class _:
    def counts_all_matches(logits, drafted):
        """You count every draft token that matches, even those after a mismatch. From the first wrong draft token on,
        the target's logits belong to a sequence that is not the output, so a match there means nothing. Stop counting
        at the first draft token that differs."""
        best = logits.argmax(-1).tolist()
        accepted = sum(d == b for d, b in zip(drafted, best, strict=False))
        return accepted, best[accepted]

    def one_row_late(logits, drafted):
        """You compare each draft token with the logits at that token itself, but those say what comes after it. The
        first draft token is judged by row 0 of the tensor, which belongs to the last token of the sequence, so compare
        drafted[i] with the argmax of logits[i]."""
        best = logits.argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == best[accepted + 1]:
            accepted += 1
        return accepted, best[accepted]

    def forgets_the_bonus(logits, drafted):
        """You emit nothing when every draft token was right. The last row of the tensor has been computed anyway.
        Return its argmax: the target's token after the last draft token, the bonus."""
        accepted, emitted = greedy_verify(logits, drafted)
        return accepted, None if accepted == len(drafted) else emitted

    def emits_the_rejected_draft(logits, drafted):
        """After a mismatch you emit the draft token that was just rejected. Emit the target's own choice for that
        position instead, the argmax of the logits that judged it."""
        accepted, emitted = greedy_verify(logits, drafted)
        return accepted, drafted[accepted] if accepted < len(drafted) else emitted

    def always_the_last_row(logits, drafted):
        """Your token comes from the last logits, even if a draft token was rejected before. Those logits were computed
        after the rejected token. Take the argmax of the logits where the mismatch was found."""
        return greedy_verify(logits, drafted)[0], int(logits[-1].argmax())


def logits_case(draw: Draw, k: int, right: int) -> dict:
    """Logits [k + 1, V] without ties, all below zero half of the time; the first `right` draft tokens agree."""
    vocabulary = draw.whole(2, 3 + draw.size)
    shift = draw.choice([0, 10])
    rows = [draw.sample(range(vocabulary), vocabulary) for _ in range(k + 1)]
    logits = torch.tensor(rows, dtype=torch.float64) / 4 - shift
    best = logits.argmax(-1).tolist()
    drafted = [b if i < right else (b + draw.whole(1, vocabulary - 1)) % vocabulary for i, b in enumerate(best[:k])]
    for i in range(right + 1, k):  # right again, after a mistake
        drafted[i] = best[i] if draw.chance(0.6) else drafted[i]
    return dict(logits=logits, drafted=drafted)


@fresh("05.greedy_verify", "a rejection")
def _(draw):
    k = draw.whole(1, 1 + draw.size)
    return logits_case(draw, k, draw.randrange(k))


@fresh("05.greedy_verify", "all accepted: the bonus")
def _(draw):
    k = draw.whole(1, 1 + draw.size)
    return logits_case(draw, k, k)


fresh("05.greedy_verify", "no draft", lambda draw: logits_case(draw, 0, 0), weight=0.5, count=5)


# ---- 05.rewind ------------------------------------------------------------------------------------------------------
def rewind(n, k, accepted):
    return n + accepted, min(n + accepted, n + k - 1)


def observe_rewind(answer, n, k, accepted):
    target, draft = pair(answer(n, k, accepted), "the length of the target's cache and that of the draft model's cache")
    return {
        "target's cache": token(target, "the length of the target's cache"),
        "draft model's cache": token(draft, "the length of the draft model's cache"),
    }


REWIND = exercise(
    "05.rewind",
    reference=rewind,
    observe=observe_rewind,
    cases=[
        dict(n=1, k=1, accepted=0),
        dict(n=1, k=1, accepted=1),
        dict(n=3, k=2, accepted=1),
        dict(n=3, k=2, accepted=2),
        dict(n=5, k=4, accepted=0),
        dict(n=9, k=4, accepted=4),
    ],
)


@REWIND.wrong_solutions
class _:
    def keeps_everything(n, k, accepted):
        """You keep the rejected draft tokens, so from then on both models attend to tokens that are not part of the
        sequence. Keep the accepted draft tokens and no others."""
        return n + k, n + k - 1

    def draft_like_target(n, k, accepted):
        """You give both caches the same length. When all k draft tokens are accepted, the draft model's cache is one
        token shorter: the model proposed the last draft token but never processed it. Limit its length to what it has
        processed, n + k − 1."""
        return n + accepted, n + accepted

    def counts_the_emitted_token(n, k, accepted):
        """You count the emitted correction or bonus as processed. It is the first input of the next pass, so it is in
        neither cache yet. Leave it out of both lengths."""
        return n + accepted + 1, min(n + accepted + 1, n + k - 1)

    def forgets_the_last_token(n, k, accepted):
        """You keep one token too few in each cache. Besides the draft tokens, the cycle processed the last token of the
        old sequence, and that one stays."""
        return n + accepted - 1, min(n + accepted, n + k - 1) - 1


@fresh("05.rewind", "some are rejected")
def _(draw):
    k = draw.whole(1, 2 + draw.size)
    return dict(n=draw.whole(1, 9 * draw.size), k=k, accepted=draw.randrange(k))


@fresh("05.rewind", "all are accepted")
def _(draw):
    k = draw.whole(1, 2 + draw.size)
    return dict(n=draw.whole(1, 9 * draw.size), k=k, accepted=k)


# ---- 05.loop --------------------------------------------------------------------------------------------------------
BOTH = ("target", "draft")


def loop(
    target, draft, prompt, k, count, *, verify=greedy_verify, rewinds=BOTH, catches_up=True, runs_on=False, cut=True
):
    """The loop with a switch for each way to get it wrong."""
    text = list(prompt)
    while len(text) - len(prompt) < count:
        n, drafted, unread = len(text), [], text[draft.length :] if catches_up else []
        for _ in range(k):
            drafted.append(int(draft.read(unread or text[-1:])[-1].argmax()))
            unread = drafted[-1:]
        if runs_on:
            draft.read(unread)
        accepted, emitted = verify(target.read([text[-1], *drafted]), drafted)
        text += [*drafted[:accepted], emitted]
        for name, model in (("target", target), ("draft", draft)):
            if name in rewinds:
                model.rewind(min(n + accepted, model.length))
    return text[len(prompt) :][: count if cut else None]


def drive(answer, prompt, wrong_positions, k, count):
    """Let an answer drive two scripted models that have processed the prompt but its last token."""
    target = ScriptedModel("target", whole_text, prompt[:-1], most_passes=2 * count + 2)
    draft = ScriptedModel("draft model", wrong_at(wrong_positions), prompt[:-1], most_passes=(2 * count + 2) * (k + 1))
    return answer(target, draft, prompt, k, count), target, draft


def observe_loop(answer, **case):
    """The new tokens, every pass of the target, and how often the draft model ran. How it is fed shows in what it
    drafts."""
    new, target, draft = drive(answer, **case)
    passes = {f"target's pass {i}": f"after {held} tokens: {read}" for i, (held, read) in enumerate(target.passes, 1)}
    return {"new tokens": list(tokens(new)), **passes, "passes of the draft model": len(draft.passes)}


def trace(answer) -> str:
    """What the target processed, pass by pass."""
    case = LOOP.cases[-1]
    new, target, draft = drive(answer, **case)
    lines = [f"the draft model is wrong at positions {case['wrong_positions']}", "", "held  input of the target"]
    lines += [f"{held:4}  {' '.join(f'{t:2}' for t in read)}" for held, read in target.passes]
    passes = f"{len(target.passes)} forward passes of the target, {len(draft.passes)} of the draft model"
    return "\n".join([*lines, "", f"{len(tokens(new))} tokens, {passes}"])


LOOP = exercise(
    "05.loop",
    legend={"wrong_positions": "where the draft model's token is not the target's"},
    reference=loop,
    observe=observe_loop,
    picture=trace,
    cases=[
        dict(prompt=[3], wrong_positions=[], k=2, count=3),
        dict(prompt=[3], wrong_positions=[1], k=1, count=1),
        dict(prompt=[5, 8], wrong_positions=[2], k=2, count=4),
        dict(prompt=[5, 8], wrong_positions=[], k=4, count=3),
        dict(prompt=[9, 2, 6], wrong_positions=[5, 6], k=1, count=6),
        dict(prompt=[3, 1, 4], wrong_positions=[4, 9], k=3, count=14),
    ],
)


@LOOP.wrong_solutions
class _:
    def target_not_rewound(target, draft, prompt, k, count):
        """You leave rejected draft tokens in the target's cache. Its next pass attends to them, and the output is no
        longer the target's own. After every cycle, rewind the target as well as the draft model."""
        return loop(target, draft, prompt, k, count, rewinds=("draft",))

    def draft_not_rewound(target, draft, prompt, k, count):
        """You leave rejected tokens in the draft model's cache. The output stays right, so this is easy to miss, but
        the draft model continues a sequence that is not the output and proposes worse tokens. Rewind the draft model as
        well as the target."""
        return loop(target, draft, prompt, k, count, rewinds=("target",))

    def draft_misses_its_last_token(target, draft, prompt, k, count):
        """After a cycle in which every draft token was accepted, the draft model never processes its own last draft
        token, so its cache has a gap. The output stays right, but the proposals get worse. Feed it everything after
        draft.length, which in this case is two tokens."""
        return loop(target, draft, prompt, k, count, catches_up=False)

    def no_bonus(target, draft, prompt, k, count):
        """When every draft token is accepted you add no token of the target's own. The last logits of its pass hold one
        more token, the bonus, at no additional cost. Without it, such cycles are one token shorter than they could
        be."""

        def verify(logits, drafted):
            accepted, emitted = greedy_verify(logits, drafted)
            return (accepted, emitted) if accepted < len(drafted) else (accepted - 1, drafted[-1])

        return loop(target, draft, prompt, k, count, verify=verify)

    def too_many_tokens(target, draft, prompt, k, count):
        """You return more tokens than were asked for. A cycle may end beyond count, so cut off the surplus."""
        return loop(target, draft, prompt, k, count, cut=False)

    def one_draft_pass_too_many(target, draft, prompt, k, count):
        """The draft model runs once more in every cycle, to process its last draft token. That matters only when all
        draft tokens are accepted, and then the next cycle can process it together with the bonus. So k passes per cycle
        are enough."""
        return loop(target, draft, prompt, k, count, runs_on=True)

    def returns_the_prompt_too(target, draft, prompt, k, count):
        """Your list begins with the prompt, but only the new tokens are asked for. Cut off the prompt before you
        return."""
        return [*prompt, *loop(target, draft, prompt, k, count)]


def run_of(draw: Draw, k: int, count: int, wrong: float) -> dict:
    prompt = [draw.randrange(VOCABULARY) for _ in range(draw.whole(1, 1 + draw.size))]
    positions = [at for at in range(len(prompt), len(prompt) + count + k + 1) if draw.chance(wrong)]
    return dict(prompt=prompt, wrong_positions=positions, k=k, count=count)


@fresh("05.loop", "all draft tokens accepted")
def _(draw):
    return run_of(draw, draw.whole(1, 1 + draw.size), draw.whole(1, 3 + 3 * draw.size), wrong=0)


@fresh("05.loop", "rejections now and then")
def _(draw):
    return run_of(draw, draw.whole(1, 1 + draw.size), draw.whole(2, 3 + 3 * draw.size), wrong=0.3)


@fresh("05.loop", "hardly anything accepted", weight=0.5)
def _(draw):
    return run_of(draw, draw.whole(1, 4), draw.whole(2, 2 + 2 * draw.size), wrong=0.85)


@fresh("05.loop", "drafts longer than what is wanted", weight=0.5)
def _(draw):
    count = draw.whole(1, 1 + draw.size)
    return run_of(draw, count + draw.whole(0, 3), count, wrong=0.15)
