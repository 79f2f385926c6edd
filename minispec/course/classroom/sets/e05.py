"""Set 05, draft and verify: the greedy verdict, the two caches, the loop."""

from __future__ import annotations

import torch

from ..exercise import exercise, pair, token, tokens
from ..fakes import ScriptedModel, whole_text, wrong_at

# ---- 05.greedy_verify -----------------------------------------------------------------------------------------------


def greedy_verify(logits, drafted):
    best = logits.argmax(-1).tolist()
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == best[accepted]:
        accepted += 1
    return accepted, best[accepted]


def observe_verdict(answer, logits, drafted):
    accepted, emitted = pair(answer(logits, drafted), "how many drafts are accepted and the token after them")
    return {
        "accepted": token(accepted, "the number of accepted drafts"),
        "token": emitted if emitted is None else token(emitted),
    }


def preferring(*best, vocabulary=4):
    """Logits [γ+1, V] whose best tokens are these. Not one-hot: the runner-up is close."""
    logits = torch.arange(vocabulary).repeat(len(best), 1) / 10.0
    logits[range(len(best)), list(best)] = 1.0
    return logits


GREEDY_VERIFY = exercise(
    "05.greedy_verify",
    title="The greedy verdict",
    level="E",
    minutes=10,
    points=1,
    hints=(
        "One pass gave you γ + 1 rows. Which draft does row i speak about: the one that was read in it, or the next?",
        "Row i is the target's opinion on d_{i+1}, the draft that comes after what was read. So compare drafted[i] "
        "with the argmax of logits[i], and stop at the first that differs.",
        "Count up while drafted[accepted] == best[accepted], where best = logits.argmax(-1). The token is then "
        "best[accepted], whether that row corrects a draft or is the bonus row.",
    ),
    code="minispec.verify.chain",
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


@GREEDY_VERIFY.mutant
def counts_all_matches(logits, drafted):
    """You count every draft that matches, also those behind a mismatch. After the first wrong draft the target has
    read a text that will not be written, so what it says about later drafts is worth nothing: stop there."""
    best = logits.argmax(-1).tolist()
    accepted = sum(d == b for d, b in zip(drafted, best, strict=False))
    return accepted, best[accepted]


@GREEDY_VERIFY.mutant
def one_row_late(logits, drafted):
    """You compare each draft with the row that was computed after reading it. That row speaks about the next token.
    The first draft is judged by row 0, where the last committed token was read."""
    best = logits.argmax(-1).tolist()
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == best[accepted + 1]:
        accepted += 1
    return accepted, best[accepted]


@GREEDY_VERIFY.mutant
def forgets_the_bonus(logits, drafted):
    """You emit nothing when every draft was right. But the last row has been paid for: it holds the target's token
    after the last draft, the bonus."""
    accepted, emitted = greedy_verify(logits, drafted)
    return accepted, None if accepted == len(drafted) else emitted


@GREEDY_VERIFY.mutant
def emits_the_rejected_draft(logits, drafted):
    """After a mismatch you emit the draft that was just rejected. The target's own choice for that place goes
    there."""
    accepted, emitted = greedy_verify(logits, drafted)
    return accepted, drafted[accepted] if accepted < len(drafted) else emitted


@GREEDY_VERIFY.mutant
def always_the_last_row(logits, drafted):
    """Your token comes from the last row, even when a draft was rejected before it. That row has read the rejected
    draft. The correction is in the row where the mismatch was found."""
    return greedy_verify(logits, drafted)[0], int(logits[-1].argmax())


# ---- 05.rewind ------------------------------------------------------------------------------------------------------


def rewind(n, gamma, accepted):
    return n + accepted, min(n + accepted, n + gamma - 1)


def observe_rewind(answer, n, gamma, accepted):
    target, draft = pair(answer(n, gamma, accepted), "the target's length and the draft's")
    return {
        "target's cache": token(target, "the length of the target's cache"),
        "draft's cache": token(draft, "the length of the draft's cache"),
    }


REWIND = exercise(
    "05.rewind",
    title="Rewind both caches",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "Write the texts down, token by token, for n = 3, γ = 2: what has each model read when the cycle ends? "
        "Then cross out what was rejected.",
        "The target read the last token and all γ drafts, the draft read the last token and all drafts but the "
        "last. What was accepted stays. The token that the cycle emitted was read by nobody.",
        "The target keeps n − 1 tokens from before, the last token and the accepted drafts: n + a. The draft keeps "
        "the same, but cannot keep more than it has read, and that was n + γ − 1.",
    ),
    code="minispec.drafters.Model.settle",
    reference=rewind,
    observe=observe_rewind,
    cases=[
        dict(n=1, gamma=1, accepted=0),
        dict(n=1, gamma=1, accepted=1),
        dict(n=3, gamma=2, accepted=1),
        dict(n=3, gamma=2, accepted=2),
        dict(n=5, gamma=4, accepted=0),
        dict(n=9, gamma=4, accepted=4),
    ],
)


@REWIND.mutant
def keeps_everything(n, gamma, accepted):
    """You keep the rejected drafts. From then on both models read a text that nobody wrote."""
    return n + gamma, n + gamma - 1


@REWIND.mutant
def draft_like_target(n, gamma, accepted):
    """You give both caches the same length. When all γ drafts are accepted the draft is one token short: it proposed
    the last draft but never read it, so it cannot keep it."""
    return n + accepted, n + accepted


@REWIND.mutant
def counts_the_emitted_token(n, gamma, accepted):
    """You count the emitted correction or bonus as read. It is in neither cache: it opens the next pass, as its last
    token."""
    return n + accepted + 1, min(n + accepted + 1, n + gamma - 1)


@REWIND.mutant
def forgets_the_last_token(n, gamma, accepted):
    """You keep one token too few. Besides the drafts the cycle read the last committed token, and that one stays."""
    return n + accepted - 1, min(n + accepted, n + gamma - 1) - 1


@REWIND.mutant
def back_to_the_start(n, gamma, accepted):
    """You rewind to where the cycle began. Nothing breaks, but the accepted drafts have to be read once more: the
    saved passes are spent again."""
    return n - 1, n - 1


# ---- 05.loop --------------------------------------------------------------------------------------------------------


def loop(target, draft, prompt, gamma, count):
    text = list(prompt)
    while len(text) - len(prompt) < count:
        n, drafted, unread = len(text), [], text[draft.length :]
        for _ in range(gamma):
            drafted.append(int(draft.read(unread)[-1].argmax()))
            unread = drafted[-1:]
        accepted, emitted = greedy_verify(target.read([text[-1], *drafted]), drafted)
        text += [*drafted[:accepted], emitted]
        for model, length in zip((target, draft), rewind(n, gamma, accepted), strict=True):
            model.rewind(length)
    return text[len(prompt) :][:count]


def drive(answer, prompt, wrong_places, gamma, count):
    """Let an answer drive two scripted models that have read the prompt but its last token."""
    target = ScriptedModel("target", whole_text, prompt[:-1], most_passes=2 * count + 2)
    draft = ScriptedModel("draft", wrong_at(wrong_places), prompt[:-1], most_passes=(2 * count + 2) * (gamma + 1))
    return answer(target, draft, prompt, gamma, count), target, draft


def observe_loop(answer, **case):
    """The text, every pass of the target, and how often the draft ran. How the draft is fed shows in what it drafts."""
    new, target, draft = drive(answer, **case)
    passes = {
        f"target's pass {i}": f"after {held} tokens reads {read}" for i, (held, read) in enumerate(target.passes, 1)
    }
    return {"new tokens": list(tokens(new)), **passes, "passes of the draft": len(draft.passes)}


def trace(answer) -> str:
    """What the target saw, pass by pass."""
    case = LOOP.cases[-1]
    new, target, draft = drive(answer, **case)
    lines = [f"the draft is wrong about places {case['wrong_places']} of the text", "", "held  the target read"]
    lines += [f"{held:4}  {' '.join(f'{t:2}' for t in read)}" for held, read in target.passes]
    passes = f"{len(target.passes)} passes of the target, {len(draft.passes)} of the draft"
    return "\n".join([*lines, "", f"{len(tokens(new))} tokens, {passes}"])


LOOP = exercise(
    "05.loop",
    title="The loop",
    level="H",
    minutes=35,
    points=4,
    hints=(
        "Keep one list: the text. Everything else follows from its length and from the lengths of the two caches. "
        "What has the draft not read yet at the start of a cycle? One token, or two.",
        "text[draft.length:] is what the draft has to read first, in one pass; after that, its own newest draft, γ "
        "passes in all. The target reads [text[-1], *drafted] in one pass. Note n = len(text) before you add to "
        "it.",
        "while len(text) − len(prompt) < count: draft γ tokens; accepted, token = our_verify(target.read(…), "
        "drafted); extend text by drafted[:accepted] and token; rewind both caches to what our_rewind(n, gamma, "
        "accepted) says. At the end return the new tokens, cut to count.",
    ),
    code="minispec.speculate",
    reference=loop,
    observe=observe_loop,
    picture=trace,
    cases=[
        dict(prompt=[3], wrong_places=[], gamma=2, count=3),
        dict(prompt=[3], wrong_places=[1], gamma=1, count=1),
        dict(prompt=[5, 8], wrong_places=[2], gamma=2, count=4),
        dict(prompt=[5, 8], wrong_places=[], gamma=4, count=3),
        dict(prompt=[9, 2, 6], wrong_places=[5, 6], gamma=1, count=6),
        dict(prompt=[3, 1, 4], wrong_places=[4, 9], gamma=3, count=14),
    ],
)


def flawed(target, draft, prompt, gamma, count, *, verify=greedy_verify, rewinds=("target", "draft"),
           reads_missed_draft=True, reads_last_draft=False):  # fmt: skip
    """The loop with a switch for each way to get it wrong. Returns all new tokens, those beyond count too."""
    text = list(prompt)
    while len(text) - len(prompt) < count:
        n, drafted, unread = len(text), [], text[draft.length :] if reads_missed_draft else []
        for _ in range(gamma):
            drafted.append(int(draft.read(unread or text[-1:])[-1].argmax()))
            unread = drafted[-1:]
        if reads_last_draft:
            draft.read(unread)
        accepted, emitted = verify(target.read([text[-1], *drafted]), drafted)
        text += [*drafted[:accepted], emitted]
        for model in (target, draft):
            if model.name in rewinds:
                model.rewind(min(n + accepted, model.length))
    return text[len(prompt) :]


@LOOP.mutant
def target_not_rewound(target, draft, prompt, gamma, count):
    """You leave rejected drafts in the target's cache. Its next pass reads your text behind tokens that were thrown
    away, and what it writes is no longer its own."""
    return flawed(target, draft, prompt, gamma, count, rewinds=("draft",))[:count]


@LOOP.mutant
def draft_not_rewound(target, draft, prompt, gamma, count):
    """You leave rejected tokens in the draft's cache. The output stays right, which is why nobody notices, but the
    draft goes on from a text that was never written and guesses badly."""
    return flawed(target, draft, prompt, gamma, count, rewinds=("target",))[:count]


@LOOP.mutant
def draft_misses_its_last_token(target, draft, prompt, gamma, count):
    """After a cycle in which every draft was accepted, the draft never reads its own last draft: its text has a hole.
    The output stays right but the guesses get worse. Feed text[draft.length:], which is two tokens then."""
    return flawed(target, draft, prompt, gamma, count, reads_missed_draft=False)[:count]


@LOOP.mutant
def no_bonus(target, draft, prompt, gamma, count):
    """When every draft is accepted you add no token of the target's own. The last row of its pass holds one more, the
    bonus, at no cost; without it such cycles are a token shorter than they could be."""

    def verify(logits, drafted):
        accepted, emitted = greedy_verify(logits, drafted)
        return (accepted, emitted) if accepted < len(drafted) else (accepted - 1, drafted[-1])

    return flawed(target, draft, prompt, gamma, count, verify=verify)[:count]


@LOOP.mutant
def too_many_tokens(target, draft, prompt, gamma, count):
    """You return more than was asked for. A cycle may end beyond count: cut the surplus off."""
    return flawed(target, draft, prompt, gamma, count)


@LOOP.mutant
def one_draft_pass_too_many(target, draft, prompt, gamma, count):
    """The draft runs once more in every cycle, to read its last draft. That is only needed when all drafts are
    accepted, and then the next cycle can read it together with the bonus: γ passes a cycle are enough."""
    return flawed(target, draft, prompt, gamma, count, reads_last_draft=True)[:count]


@LOOP.mutant
def returns_the_prompt_too(target, draft, prompt, gamma, count):
    """Your list begins with the prompt. Return the new tokens only."""
    return [*prompt, *loop(target, draft, prompt, gamma, count)]
