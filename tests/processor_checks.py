"""Checks of sampling that depends on the prefix: with every draft the output is that of plain decoding."""

import re
from collections import Counter
from functools import cache
from itertools import product
from math import inf
from random import Random

import exact_distributions
import torch
from all_drafters import ALL
from loop_checks import law_pair
from tiny_models import random_model
from tokenizers import Tokenizer, decoders, models

import minispec as ms
from minispec import exact, verify
from minispec.processors.drafts import process_next
from minispec.sequence import Sequence
from minispec.tree import Draft

# ---- a toy vocabulary -----------------------------------------------------------------------------------------------

END, LETTERS = 0, "ab0,"
PIECES = ["<end>", *("".join(letters) for n in (1, 2, 3) for letters in product(LETTERS, repeat=n))][:64]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 3, 1, 4, 1]
REGEX = r"(a|b0?)+,[^,]{2,5}(,|0)*"


@cache
def pair() -> tuple[ms.Model, ms.Model]:
    """A target whose tokens have texts of one to three letters, and its first layer as the draft."""
    return ms.Model("toy", random_model().transformer, toy_tokenizer(PIECES), {END}), random_model(num_layers=1)


def toy_tokenizer(pieces: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({piece: token for token, piece in enumerate(pieces)}, unk_token="<end>"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def random_options(random: Random) -> dict:
    """Some of everything, together with all ways to end."""
    some = dict(
        repetition_penalty=random.choice((0.8, 1.3, 2.0)),
        presence_penalty=random.choice((-1.0, 0.5, 2.0)),
        frequency_penalty=random.choice((-0.3, 0.4, 1.5)),
        logit_bias={random.randrange(64): random.choice((-9.0, 2.0, 5.0)) for _ in range(4)},
        min_new_tokens=random.randint(1, 9),
        stop_token_ids=random.sample(range(64), 6),
        stop=["".join(random.choices(LETTERS, k=random.choice((2, 3, 4)))) for _ in range(2)],
        ignore_eos=True,
    )
    options = {name: value for name, value in some.items() if random.random() < 0.35}
    if random.random() < 0.4:
        way = random.choice([dict(regex=REGEX), dict(choices=["abab,0", "b0,,a", "ab"]), dict(regex="[ab]*0{2,}")])
        options |= way
        if options.get("ignore_eos"):
            options["stop_token_ids"] = [END]
        if random.random() < 0.6:  # spelt by one token, by several, or by a part of one
            options["constrain_after"] = random.choice(("a", "b0", ",a"))
    return options | dict(max_new_tokens=random.randint(options.get("min_new_tokens", 1), 14), logprobs=2)


def assert_same(out: ms.Output, plain: ms.Output) -> None:
    """The same tokens, text and end, and log-probabilities within rounding."""
    assert (out.tokens, out.text) == (plain.tokens, plain.text)
    assert (out.finish_reason, out.stop_reason, out.error) == (plain.finish_reason, plain.stop_reason, None)
    for own, other in zip(out.logprobs, plain.logprobs, strict=True):
        assert own.token == other.token and close(own.logprob, other.logprob)
        assert all(close(a, b) for (_, a), (_, b) in zip(own.top, other.top, strict=True))


def close(a: float, b: float) -> bool:
    return a == b or abs(a - b) < 1e-9


# ---- greedy: the same tokens ----------------------------------------------------------------------------------------


def one_drafter(name: str, options: dict, k: int = 3, fast: bool = False) -> None:
    """One drafter, in the loop and in an engine, against plain decoding."""
    target, draft = pair()
    plain = ms.generate(target, PROMPT, **options)
    drafter = ALL[name](target, draft)
    assert_same(ms.speculate(target, PROMPT, drafter, k, **options), plain)
    engine = ms.Engine(target, ALL[name](target, draft), num_blocks=64, block_size=4, k=k, fast=fast)
    ids = [engine.add(PROMPT, **options), engine.add(PROMPT[3:], 8)]
    outs = engine.run()
    assert_same(outs[ids[0]], plain)
    assert outs[ids[1]].tokens == ms.generate(target, PROMPT[3:], 8).tokens  # a neighbour does not notice


def check_penalties() -> None:
    """Each alone, so strong that what was drafted decides what comes after it."""
    for options in (dict(repetition_penalty=0.4), dict(presence_penalty=-4.0), dict(frequency_penalty=-1.0)):
        for name in ("eagle, tree", "quantized, 8 bits"):
            one_drafter(name, dict(max_new_tokens=16, ignore_eos=True, logprobs=2) | options)


def check_constraint() -> None:
    """What comes out is what was asked for, and the whole of it; drafts that leave it are rejected. After a tag the
    same, by the letters of it: what comes before is free, and what comes after is a whole answer."""
    check_exact(BOUNDARY, tokens=3)
    target, draft = pair()
    for name, seed in product(("model", "ngram", "medusa", "eagle, tree", "cascade"), range(3)):
        eager = dict(logit_bias={END: 3.0}, temperature=1.0, seed=seed)  # it would rather end at once
        for tag, most in ((None, 40), ("b0", 90)):
            made, after = ALL[name](target, draft), dict(constrain_after=tag) if tag else {}
            out = ms.speculate(target, PROMPT, made, 4, most, regex=REGEX, **after, **eager)
            answer = out.text.partition(tag)[2] if tag else out.text
            assert out.finish_reason == "stop" and re.fullmatch(REGEX, answer), out.text
        out = ms.speculate(target, PROMPT, ALL[name](target, draft), 4, 40, choices=["ab0", "b,,"], seed=seed)
        assert out.text in ("ab0", "b,,")


def check_engine(count: int = 24, fast: bool = False) -> None:
    """Random requests with everything on, in few blocks: preempted, aborted, and each as if it were alone."""
    target, draft = pair()
    for drafter in (None, ALL["model"](target, draft), ALL["eagle, tree"](target, draft)):
        random = Random(1)
        sizes = dict(num_blocks=14, block_size=4, max_num_seqs=6, max_num_batched_tokens=64, max_chunk=16)
        engine = ms.Engine(target, drafter, k=3, fast=fast, **sizes)
        asked, outs = {}, {}
        for _ in range(count):
            prompt, options = random.choices(range(64), k=random.randint(1, 24)), random_options(random)
            asked[engine.add(prompt, **options)] = (prompt, options)
        while engine.sequences:
            engine.step()
            engine.check_integrity()
            if random.random() < 0.05 and engine.sequences:
                engine.abort(random.choice(list(engine.sequences)))
            outs |= engine.take()
        for id, (prompt, options) in asked.items():
            plain = ms.generate(target, prompt, **options)
            if outs[id].finish_reason == "abort":
                assert outs[id].tokens == plain.tokens[: len(outs[id].tokens)]
            else:
                assert_same(outs[id], plain)
        assert count < 20 or engine.metrics()["totals"]["preemptions"] > 0


# ---- sampled: the same distribution ---------------------------------------------------------------------------------
# The reference is written down here once more, one prefix and one token at a time.

KNOBS = (
    dict(repetition_penalty=1.6, frequency_penalty=0.7, presence_penalty=-0.4),
    dict(logit_bias={2: 1.5, 4: -2.0}, presence_penalty=1.2),
    dict(choices=[(3, 1, 2), (3, 4), (2, 2, 2), (1,)], stop_token_ids=[0], frequency_penalty=1.0),
    dict(min_new_tokens=2, stop_token_ids=[0, 3], repetition_penalty=0.5),
)

TOY = ["<end>", "a", "b", ".", "b."]
BOUNDARY = (  # the prompt, "aba", holds the tag as well; "b." may hold the end of it and more
    dict(constrain_after="ab", choices=[".a", "b"], stop_token_ids=[0], presence_penalty=1.0),
    dict(constrain_after="b", choices=["aa", "ba"], stop_token_ids=[0]),
)


def by_hand(logits: list[float], prompt: list[int], output: list[int], knobs: dict) -> list[float]:
    """Processed logits of one position."""
    made, ends = [], knobs.get("stop_token_ids", ())
    tag, answers = knobs.get("constrain_after"), knobs.get("choices", ())
    fits = [c for c in answers if tag is None and c[: len(output)] == tuple(output)]
    text = "".join(TOY[x] for x in output)
    for x, z in enumerate(logits):
        z += knobs.get("logit_bias", {}).get(x, 0.0)
        if x in prompt or x in output:
            z = z / knobs.get("repetition_penalty", 1.0) if z > 0 else z * knobs.get("repetition_penalty", 1.0)
        z -= knobs.get("frequency_penalty", 0.0) * list(output).count(x)
        z -= knobs.get("presence_penalty", 0.0) * (x in output)
        if x in ends and len(output) < knobs.get("min_new_tokens", 0):
            z = -inf
        if fits and not any(c[len(output) :][:1] == (x,) or (x in ends and c == tuple(output)) for c in fits):
            z = -inf
        if tag and x in ends and (tag not in text or text.partition(tag)[2] not in answers):
            z = -inf
        if tag and x not in ends and not any(c.startswith((text + TOY[x]).partition(tag)[2]) for c in answers):
            z = -inf
        made.append(z)
    return made


@cache
def table(context: tuple[int, ...], seed: int) -> torch.Tensor:
    """Logits of a toy model: other ones after every context."""
    generator = torch.Generator().manual_seed(hash((seed, *context)) % 2**31)
    return 1.5 * torch.randn(5, generator=generator, dtype=torch.float64)


PLAIN = ms.Sampling(temperature=1.0)


def toy_context(processors, output: tuple[int, ...]) -> Sequence:
    tokens, prompt_length = [*processors.prompt, *output], len(processors.prompt)
    return Sequence(0, tokens, PLAIN, None, processors=processors, prompt_length=prompt_length)


def check_exact(knobs=KNOBS, processed_drafts=(True, False), trees: bool = True, tokens: int | None = None) -> None:
    """The distribution of whole outputs through the real verifiers, computed down every branch: plain decoding's."""
    prompt, sampling, model = (1, 2, 1), PLAIN, ms.Model("toy", law_pair()[0].transformer, toy_tokenizer(TOY))
    for number, some in enumerate(knobs):
        longest = tokens or 3 - number % 2
        processors = ms.SamplingParams(**some).processors(model, prompt)

        def plain(context, some=some, number=number):
            z = by_hand(table(context, number).tolist(), prompt, context, some)
            return {(x,): float(p) for x, p in enumerate(torch.tensor(z, dtype=torch.float64).softmax(-1)) if p > 0}

        expected = cut_at_ends(exact.joint_distribution(plain, longest), some)
        for own in processed_drafts:

            @cache
            def q_after(context, processors=processors, number=number, own=own):
                logits = table(context, number + 100)[None]
                if own:
                    logits = process_next(logits, [toy_context(processors, context)], [])
                return sampling.probs(logits)[0]

            def cycle(context, widths, processors=processors, number=number, q_after=q_after):
                known = {}  # of each draft: the target's distributions, by the code that is tested

                def program(random):
                    made = exact_distributions.propose_tree(q_after, context, widths, random)
                    draft = Draft(made[0], made[2], made[1] if max(widths) > 1 else None)
                    outputs = {-1: context}
                    for node, (token, parent) in enumerate(zip(draft.tokens, draft.node_parents, strict=True)):
                        outputs[node] = (*outputs[parent], token)
                    if (drafted := tuple(draft.tokens)) not in known:
                        logits = torch.stack([table(output, number) for output in outputs.values()])[None]
                        verify.process(logits, [toy_context(processors, context)], [draft])
                        known[drafted] = sampling.probs(logits[0])
                    p, u = known[drafted], [random() for _ in outputs]
                    if draft.parents is None:
                        return verify.chain(p, draft.probs, draft.tokens, u).run(draft.tokens)
                    return verify.tree(p, draft.probs, draft.tokens, draft.parents, u).run(draft.tokens)

                return exact.exact_distribution(program)

            for widths in ((1, 1), (2,)) if trees and not own else ((1, 1),):
                found = exact.joint_distribution(lambda context, w=widths, c=cycle: c(context, w), longest)
                off = exact.total_variation(cut_at_ends(found, some), expected)
                assert off <= 1e-12, f"{some}, widths {widths}, own {own}: {off}"


def cut_at_ends(found: dict, knobs: dict) -> dict:
    """What follows an end token is never emitted."""
    cut, ends = Counter(), knobs.get("stop_token_ids", ())
    for output, probability in found.items():
        end = next((i + 1 for i, token in enumerate(output) if token in ends), len(output))
        cut[output[:end]] += probability
    return dict(cut)


CHECKS = {name[6:]: check for name, check in list(globals().items()) if name.startswith("check_")}
