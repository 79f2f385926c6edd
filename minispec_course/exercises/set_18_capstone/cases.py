"""Set 18, the capstone: a sampler, a drafter and a loop of one's own, and all three joined.

The parts are judged as in the other sets. What they make together is judged by the exact distribution of its output and
of its forward passes on small models; on a real one it is the leaderboard that counts (capstone.py).
"""

from functools import partial

import torch

from minispec.verify import accept_probability, pick, residual

from ..exercise import Complaint, distribution_of, exercise, lend, rows
from ..fakes import VOCABULARY, SampledModel, ScriptedModel, continuation, whole_text, wrong_at
from ..fresh import Draw, fresh
from ..returned import pair, tensor, tokens
from ..set_05_draft_and_verify.cases import greedy_verify
from ..show import kind


# ---- 18.sampler -----------------------------------------------------------------------------------------------------
def softened(logits, temperature):
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits)
    return (logits / temperature).softmax(-1)


def sampler(logits, q, drafted, temperature, random):
    return emit(softened(logits, temperature), q, drafted, random)


def emit(p, q, drafted, random, *, replace=residual, bonus=True):
    """The rejection sampler with a switch for each way to get it wrong."""
    for i, d in enumerate(drafted):
        if not random() < accept_probability(p[i], q[i], d):
            return [*drafted[:i], pick(replace(p[i], q[i]), random())]
    return [*drafted, pick(p[-1], random())] if bonus or not drafted else list(drafted)


def emitted_runs(answer, logits, q, temperature):
    """The exact distribution of all tokens of a cycle, with that of the draft tokens included."""

    def cycle(random):
        drafted = [pick(row, random()) for row in q]
        given, give_back = lend(answer, "drafted", drafted)
        emitted = tokens(answer(logits, q if drafted else None, given, temperature, random))
        give_back()
        return emitted

    return distribution_of(cycle)


SAMPLER = exercise(
    "18.sampler",
    reference=sampler,
    observe=emitted_runs,
    cases=[
        dict(logits=rows([1.0, 0.0]), q=torch.zeros(0, 2, dtype=torch.float64), temperature=1.0),
        dict(logits=rows([1.0, 0.0], [0.0, 1.0]), q=rows([0.3, 0.7]), temperature=1.0),
        dict(logits=rows([1.0, 0.0], [0.0, 1.0]), q=rows([0.3, 0.7]), temperature=0.5),
        dict(logits=rows([1.0, 0.0], [0.0, 1.0]), q=rows([0.4, 0.6]), temperature=0.0),
        dict(logits=rows([0.5, 0.0, 2.0], [1.0, 1.5, 0.0]), q=rows([0.2, 0.2, 0.6]), temperature=2.0),
        dict(logits=rows([0.0, 1.0], [1.0, 0.5], [2.0, 0.0]), q=rows([0.6, 0.4], [0.2, 0.8]), temperature=0.7),
    ],
)


@SAMPLER.wrong_solutions
class WrongSampler:
    def no_bonus(logits, q, drafted, temperature, random):
        """When all draft tokens are accepted, you stop there. The same pass has computed the logits after the last one:
        sample one more token from them, the bonus."""
        return emit(softened(logits, temperature), q, drafted, random, bonus=False)

    def corrects_from_p(logits, q, drafted, temperature, random):
        """After a rejection you sample from p. Tokens that the draft model prefers get a second chance that way. Sample
        from the residual, norm([p − q]₊)."""
        return emit(softened(logits, temperature), q, drafted, random, replace=lambda p, q: p)

    def ignores_the_temperature(logits, q, drafted, temperature, random):
        """You take softmax(logits), whatever the temperature is. Divide the logits by it first: below 1 the
        distribution gets sharper, above 1 flatter."""
        return sampler(logits, q, drafted, 1.0, random)

    def zero_is_one(logits, q, drafted, temperature, random):
        """At temperature 0 you sample as at 1. Temperature 0 means greedy: put all probability on the most likely
        token."""
        return sampler(logits, q, drafted, temperature or 1.0, random)

    def tempers_the_draft_too(logits, q, drafted, temperature, random):
        """You apply the temperature to q as well. q is the distribution that the draft tokens were really sampled from,
        with whatever temperature the drafter used, so leave it as it is."""
        return emit(
            softened(logits, temperature), None if q is None else softened(q.log(), temperature), drafted, random
        )


TEMPERATURES = [0.5, 0.7, 1.0, 1.5, 2.0]


def logits_rows(draw: Draw, count: int, n: int) -> torch.Tensor:
    """Logits [count, n] with a different number for every token of a row, so that there is one best."""
    rows = [draw.sample(range(-4, 5), n) for _ in range(count)]
    return torch.tensor(rows, dtype=torch.float64) / 2


def cycle(draw: Draw, k: int, n: int, temperature: float) -> dict:
    return dict(logits=logits_rows(draw, k + 1, n), q=draw.rows(k, n), temperature=temperature)


fresh(
    "18.sampler", "one draft token", lambda draw: cycle(draw, 1, draw.whole(2, 3), draw.choice(TEMPERATURES)), count=6
)


@fresh("18.sampler", "several draft tokens", count=5)
def _(draw):
    return cycle(draw, 2 if draw.size < 5 else 3, 2 if draw.size in (1, 5) else 3, draw.choice(TEMPERATURES))


fresh("18.sampler", "temperature 0", lambda draw: cycle(draw, draw.whole(0, 2), draw.whole(2, 3), 0.0), count=6)


@fresh("18.sampler", "no draft", weight=0.5, count=4)
def _(draw):
    return cycle(draw, 0, draw.whole(2, 4), draw.choice(TEMPERATURES))


# ---- 18.drafter -----------------------------------------------------------------------------------------------------
def drafter(model, text, k, temperature, random, *, unread=None, draw=pick, report=None, extra=False):
    """The drafter with parts to exchange."""
    drafted, probs = [], []
    for _ in range(k):
        so_far = [*text, *drafted]
        logits = model.read(unread(so_far) if unread else so_far[model.length :])[-1]
        q = softened(logits, temperature)
        drafted.append(draw(q, random()))
        probs.append(report(logits) if report else q)
    if extra and drafted:
        model.read(drafted[-1:])
    return drafted, torch.stack(probs) if probs else None


TWO = rows([0.6, 0.4], [0.3, 0.7], [0.8, 0.2], [0.45, 0.55]).log()


def observe_drafts(answer, text, held, k, temperature):
    """The exact distribution of the draft; and for each draft the q that came with it and what the model processed."""
    reported, reads = {}, {}

    def draft(random):
        model = SampledModel("draft", lambda t: TWO[whole_text(t) % 4], text[:held], most_passes=k + 2)
        given, give_back = lend(answer, "text", text)
        drafted, q = pair(answer(model, given, k, temperature, random), "the draft tokens and their distributions")
        give_back()
        drafted = tokens(drafted, "the first of your two results")
        if not drafted and q is not None:
            raise Complaint(f"where nothing is drafted, q should be None; yours is {kind(q)}.")
        if drafted:
            reported[drafted] = tensor(q, "q, a distribution for each draft token,", (len(drafted), 2))
        reads[drafted] = [read for _, read in model.passes]
        return drafted

    return {"draft": distribution_of(draft), "q of each": reported, "what the draft model processed": reads}


DRAFTER = exercise(
    "18.drafter",
    legend={"held": "how many of the tokens the model's cache holds"},
    reference=drafter,
    observe=observe_drafts,
    cases=[
        dict(text=[1, 0], held=1, k=1, temperature=1.0),
        dict(text=[1, 0], held=1, k=1, temperature=0.5),
        dict(text=[0, 1, 1], held=2, k=2, temperature=1.0),
        dict(text=[0, 1, 1], held=1, k=2, temperature=1.0),
        dict(text=[1, 1, 0, 1], held=2, k=2, temperature=0.0),
        dict(text=[1, 1, 0, 1], held=3, k=3, temperature=0.7),
        dict(text=[1, 0], held=1, k=0, temperature=1.0),
    ],
)


@DRAFTER.wrong_solutions
class WrongDrafter:
    def only_the_last_token(model, text, k, temperature, random):
        """You run the draft model on the last token of the sequence only. After a cycle in which every draft token was
        accepted, two tokens are missing from its cache: its own last draft token, and the bonus. Use
        text[model.length:]."""
        return drafter(model, text, k, temperature, random, unread=lambda so_far: so_far[-1:])

    def reads_its_last_draft(model, text, k, temperature, random):
        """You also run the model on its last draft token. Nobody needs what follows that token, and it may be rejected.
        For k draft tokens make k passes."""
        return drafter(model, text, k, temperature, random, extra=True)

    def reports_another_q(model, text, k, temperature, random):
        """You sample with the temperature and return the distribution without it. The sampler relies on your q: if it
        is not the one that was really used, the output no longer follows the target. Return the q that you sampled
        from."""
        return drafter(model, text, k, temperature, random, report=lambda logits: logits.softmax(-1))


def draft_case(draw: Draw, behind: int, temperature: float, k: int) -> dict:
    text = [draw.randrange(2) for _ in range(draw.whole(behind, 2 + draw.size))]
    return dict(text=text, held=len(text) - behind, k=k, temperature=temperature)


@fresh("18.drafter", "one token is missing", count=6)
def _(draw):
    return draft_case(draw, 1, draw.choice(TEMPERATURES), draw.whole(1, 3))


@fresh("18.drafter", "two tokens are missing", count=6)
def _(draw):
    return draft_case(draw, 2, draw.choice(TEMPERATURES), draw.whole(1, 3))


fresh("18.drafter", "temperature 0", lambda draw: draft_case(draw, draw.whole(1, 2), 0.0, draw.whole(1, 4)), count=6)


@fresh("18.drafter", "no draft", weight=0.5, count=4)
def _(draw):
    return draft_case(draw, draw.whole(1, 2), draw.choice([0.0, 1.0]), 0)


# ---- 18.loop --------------------------------------------------------------------------------------------------------
def loop(target, draft, propose, verify, prompt, k, count, end, *, room=1, rewinds=("target", "draft"), finds=None):
    """The loop with a switch for each way to get it wrong."""
    text, last = list(prompt), len(prompt) + count
    finds = finds or (lambda emitted: emitted.index(end) + 1 if end in emitted else None)
    while len(text) < last:
        wanted = k if room is None else max(0, min(k, last - len(text) - room))
        drafted, q = propose(draft, text, wanted)
        emitted = list(verify(target.read([text[-1], *drafted]), q, drafted))
        if (stop := finds(emitted)) is not None:
            return text[len(prompt) :] + emitted[:stop]
        text += emitted
        for name, model in (("target", target), ("draft", draft)):
            if name in rewinds:
                model.rewind(min(model.length, len(text) - 1))
    return text[len(prompt) : last]


class Asked:
    """propose and verify as the loop gets them, for scripted models: greedy. Remembers how much was asked for."""

    def __init__(self):
        self.drafts: list[int] = []

    def propose(self, model, text, k):
        self.drafts += [k] * (k > 0)
        drafted = []
        for _ in range(k):
            unread = [*text, *drafted][model.length :] or [*text, *drafted][-1:]
            drafted.append(int(model.read(unread)[-1].argmax()))
        return drafted, torch.nn.functional.one_hot(torch.tensor(drafted), 16).double() if drafted else None

    def verify(self, logits, q, drafted):
        if len(logits) != len(drafted) + 1:
            raise Complaint(
                f"verify was given logits at {len(logits)} positions for {len(drafted)} draft tokens: it needs one "
                "more than draft tokens. Run the target on the last token of the sequence, then on the draft tokens."
            )
        accepted, emitted = greedy_verify(logits, drafted)
        return [*drafted[:accepted], emitted]


def observe_loop(answer, prompt, wrong_places, k, count, end):
    target = ScriptedModel("target", whole_text, prompt[:-1], most_passes=2 * count + 2)
    draft = ScriptedModel("draft", wrong_at(wrong_places), prompt[:-1], most_passes=(2 * count + 2) * (k + 1))
    asked = Asked()
    new = answer(target, draft, asked.propose, asked.verify, prompt, k, count, end)
    passes = {
        f"target's pass {i}": f"after {held} tokens processes {read}" for i, (held, read) in enumerate(target.passes, 1)
    }
    return {"new tokens": list(tokens(new)), **passes, "draft lengths asked for": asked.drafts}


def script(prompt, wrong_places, k, count, end_at=None):
    """A case; the token that ends the output is the one that the target emits at position `end_at` of the new ones."""
    end = 99 if end_at is None else continuation(prompt, end_at + 1)[-1]
    return dict(prompt=prompt, wrong_places=wrong_places, k=k, count=count, end=end)


LOOP = exercise(
    "18.loop",
    legend={"wrong_places": "positions at which the draft model's token is not the target's"},
    reference=loop,
    observe=observe_loop,
    cases=[
        script([3], [], k=1, count=1),
        script([3], [], k=2, count=3),
        script([3], [1], k=1, count=3),
        script([5, 8], [2, 3], k=2, count=6),
        script([5, 8], [], k=4, count=4),
        script([9, 2, 6], [5], k=3, count=12, end_at=4),
        script([3, 1, 4], [4, 9, 10], k=3, count=14),
        script([3, 1, 4], [], k=3, count=14, end_at=5),
        script([2, 7], [4], k=3, count=9, end_at=3),
    ],
)


@LOOP.wrong_solutions
class _:
    def draft_keeps_rejected_drafts(*parts):
        """You do not rewind the draft model's cache. The output stays right, but the draft model continues its own
        rejected tokens and is rarely accepted again. Rewind it as well."""
        return loop(*parts, rewinds=("target",))

    def drafts_in_vain(*parts):
        """You ask for k draft tokens even when fewer tokens are wanted. The last cycles then draft and verify tokens
        that are cut off afterwards. Ask for min(k, tokens still wanted − 1)."""
        return loop(*parts, room=None)

    def one_draft_too_many_at_the_end(*parts):
        """At the end you draft as many tokens as are still wanted. One of them is always the target's own, so draft one
        token fewer."""
        return loop(*parts, room=0)

    def looks_at_the_last_token_only(*parts):
        """You look for `end` in the last emitted token only. A cycle emits several tokens, and any of them may be it.
        Look at all of them, and discard what follows it in the same cycle."""
        end = parts[-1]
        return loop(*parts, finds=lambda emitted: len(emitted) if emitted[-1] == end else None)

    def drops_the_end(*parts):
        """You cut off the token `end`. It belongs to the output: return everything up to and including it."""
        end = parts[-1]
        return loop(*parts, finds=lambda emitted: emitted.index(end) if end in emitted else None)


def script_case(draw: Draw, k: int, count: int, wrong: float, end_at: int | None = None) -> dict:
    prompt = [draw.randrange(VOCABULARY) for _ in range(draw.whole(1, 1 + draw.size))]
    places = [at for at in range(len(prompt), len(prompt) + count + 1) if draw.chance(wrong)]
    return script(prompt, places, k, count, end_at)


@fresh("18.loop", "rejections now and then")
def _(draw):
    return script_case(draw, draw.whole(1, 1 + draw.size), draw.whole(1, 4 + 2 * draw.size), 0.3)


@fresh("18.loop", "all draft tokens accepted")
def _(draw):
    return script_case(draw, draw.whole(1, 1 + draw.size), draw.whole(1, 4 + 2 * draw.size), 0.0)


@fresh("18.loop", "the end comes early")
def _(draw):
    count = draw.whole(2, 5 + 2 * draw.size)
    return script_case(draw, draw.whole(1, 4), count, draw.choice([0.0, 0.2]), end_at=draw.randrange(count))


@fresh("18.loop", "drafts longer than what is left", weight=0.5)
def _(draw):
    count = draw.whole(1, 1 + draw.size)
    return script_case(draw, count + draw.whole(0, 3), count, 0.1)


@fresh("18.loop", "the end stands in the prompt", weight=0.5, count=6)
def _(draw):
    """That one does not count: the output has not begun."""
    prompt = [draw.randrange(VOCABULARY) for _ in range(draw.whole(1, 4))]
    count = draw.whole(2, 6)
    end = draw.choice(prompt)
    return dict(prompt=prompt, wrong_places=[], k=draw.whole(1, 3), count=count, end=end)


# ---- 18.whole -------------------------------------------------------------------------------------------------------
def whole(target, draft, prompt, k, count, end, temperature, random):
    return joined(target, draft, prompt, k, count, end, temperature, random)


def joined(
    target, draft, prompt, k, count, end, temperature, random, *, draft_temperature=None, verify=None, **switches
):
    """The three parts put together, with a switch for each way to get it wrong."""
    drafted_at = temperature if draft_temperature is None else draft_temperature
    propose = partial(drafter, temperature=drafted_at, random=random)
    verify = verify or partial(sampler, temperature=temperature, random=random)
    return loop(target, draft, propose, verify, prompt, k, count, end, **switches)


THREE = {
    "target": rows([0.6, 0.3, 0.1], [0.15, 0.65, 0.2], [0.25, 0.2, 0.55]).log(),
    "draft": rows([0.35, 0.5, 0.15], [0.2, 0.45, 0.35], [0.5, 0.15, 0.35]).log(),
}


def observe_whole(answer, prompt, k, count, end, temperature):
    """The exact distribution of the output and of the number of passes it took."""

    def write(random):
        most, models = (2 * count + 2) * (k + 1), []
        for name, logits in THREE.items():
            models.append(SampledModel(name, lambda text, own=logits: own[whole_text(text) % 3], prompt[:-1], most))
        given, give_back = lend(answer, "prompt", prompt)
        new = tokens(answer(*models, given, k, count, end, temperature, random))
        give_back()
        return new, f"{len(models[0].passes)} passes", f"{len(models[1].passes)} of the draft"

    return distribution_of(write)


WHOLE = exercise(
    "18.whole",
    reference=whole,
    observe=observe_whole,
    seconds=60.0,
    joins=True,
    cases=[
        dict(prompt=[1], k=1, count=1, end=9, temperature=1.0),
        dict(prompt=[1], k=1, count=2, end=9, temperature=1.0),
        dict(prompt=[0, 2], k=2, count=3, end=9, temperature=0.0),
        dict(prompt=[0, 2], k=1, count=2, end=9, temperature=0.5),
        dict(prompt=[2, 1], k=2, count=2, end=0, temperature=0.7),
    ],
)


@WHOLE.wrong_solutions
class _:
    def target_at_one(target, draft, prompt, k, count, end, temperature, random):
        """The temperature reaches your drafter, but not your sampler, so the output follows the target's distribution
        at temperature 1. Give `verify` the temperature as well."""
        verify = partial(sampler, temperature=1.0, random=random)
        return joined(target, draft, prompt, k, count, end, temperature, random, verify=verify)

    def draft_at_one(target, draft, prompt, k, count, end, temperature, random):
        """The temperature reaches your sampler, but not your drafter. The output is right, because q is what was really
        sampled from, but a draft model that samples differently from its target is accepted less often. Give `propose`
        the temperature as well."""
        return joined(target, draft, prompt, k, count, end, temperature, random, draft_temperature=1.0)

    def greedy_draft(target, draft, prompt, k, count, end, temperature, random):
        """Your drafter ignores the temperature and always drafts greedily. That is lossless, because its q is one-hot,
        but the exercise asks it to sample with the same temperature as the target."""
        return joined(target, draft, prompt, k, count, end, temperature, random, draft_temperature=0.0)

    def corrections_from_p(target, draft, prompt, k, count, end, temperature, random):
        """After a rejection your sampler samples from p instead of the residual, as the check of 18.sampler will also
        tell you."""
        verify = partial(WrongSampler.corrects_from_p, temperature=temperature, random=random)
        return joined(target, draft, prompt, k, count, end, temperature, random, verify=verify)

    def without_the_bonus(target, draft, prompt, k, count, end, temperature, random):
        """Your output is right, but cycles in which every draft token is accepted emit no bonus token, so you need more
        passes than necessary. Run the check of 18.sampler."""
        verify = partial(WrongSampler.no_bonus, temperature=temperature, random=random)
        return joined(target, draft, prompt, k, count, end, temperature, random, verify=verify)


def output_case(draw: Draw, k: int, count: int, temperature: float, end: int = 9) -> dict:
    prompt = [draw.randrange(3) for _ in range(draw.whole(1, 3))]
    return dict(prompt=prompt, k=k, count=count, end=end, temperature=temperature)


@fresh("18.whole", "whole outputs at a temperature", count=3)
def _(draw):
    return output_case(draw, draw.whole(1, 2), 2, draw.choice(TEMPERATURES))


fresh("18.whole", "greedy", lambda draw: output_case(draw, draw.whole(1, 4), draw.whole(2, 3), 0.0), count=3)


def forgetful(target, draft, prompt, k, count, end, temperature, random):
    """Right, but the draft model never processes the last token of a draft that was accepted whole."""
    propose = partial(WrongDrafter.only_the_last_token, temperature=temperature, random=random)
    verify = partial(sampler, temperature=temperature, random=random)
    return loop(target, draft, propose, verify, prompt, k, count, end)


@fresh("18.whole", "the draft after one that was accepted whole", count=4)
def _(draw):
    """Its draft model's cache lacks two tokens: without them the output is right, and takes other drafts."""

    def matters(case):
        return observe_whole(whole, **case) != observe_whole(forgetful, **case)

    return draw.until(lambda: output_case(draw, draw.whole(1, 2), draw.whole(4, 6), 0.0), matters)


@fresh("18.whole", "the end comes early", count=2)
def _(draw):
    return output_case(draw, draw.whole(1, 2), 2, draw.choice(TEMPERATURES), end=draw.randrange(3))


@fresh("18.whole", "short and long drafts", count=2)
def _(draw):
    return output_case(draw, draw.whole(1, 3), 3, 1.0, end=draw.randrange(3))
