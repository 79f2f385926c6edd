"""Sampling that depends on the prefix (penalties, biases, constraints): with every draft the output is that of plain
decoding."""

import json
import re
import warnings
from collections import Counter
from functools import cache
from itertools import product
from math import inf
from random import Random
from unittest.mock import patch

import pytest
import torch
from all_drafters import ALL
from exact_distributions import EXACT, tree_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import random_model
from tokenizers import Tokenizer, decoders, models

import minispec as ms
from minispec import exact, verify
from minispec.processors import constraint
from minispec.processors.drafts import process_next
from minispec.sequence import Sequence
from minispec.tree import Draft

# ---- a toy vocabulary ------------------------------------------------------------------------------------------------

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


# ---- greedy: the same tokens -----------------------------------------------------------------------------------------


def check_drafter(name: str, options: dict, k: int = 3, fast: bool = False) -> None:
    """One drafter, in the loop and in an engine, against plain decoding."""
    target, draft = pair()
    plain = ms.generate(target, PROMPT, **options)
    assert_same(ms.speculate(target, PROMPT, ALL[name](target, draft), k, **options), plain)
    engine = ms.Engine(target, ALL[name](target, draft), num_blocks=64, block_size=4, k=k, fast=fast)
    ids = [engine.add(PROMPT, **options), engine.add(PROMPT[3:], 8)]
    outs = engine.run()
    assert_same(outs[ids[0]], plain)
    assert outs[ids[1]].tokens == ms.generate(target, PROMPT[3:], 8).tokens  # a neighbour does not notice


@pytest.mark.slow
@settings(max_examples=24)
@given(name=st.sampled_from(list(ALL)), seed=st.integers(0, 10**6), k=st.integers(1, 5), fast=st.booleans())
def test_greedy_outputs_are_those_of_plain_decoding(name, seed, k, fast):
    """Random processors and random ends, every drafter, in the loop and in an engine: the same tokens, text, reason to
    stop, and log-probabilities."""
    check_drafter(name, random_options(Random(seed)), k, fast)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eagle, tree", "quantized, 8 bits"])
@pytest.mark.parametrize(
    "options", [dict(repetition_penalty=0.4), dict(presence_penalty=-4.0), dict(frequency_penalty=-1.0)]
)
def test_penalties_so_strong_that_a_draft_decides_what_comes_after_it(name, options):
    check_drafter(name, dict(max_new_tokens=16, ignore_eos=True, logprobs=2) | options)


@pytest.mark.slow
@pytest.mark.parametrize("count, fast", [(24, False), (10, True)])
def test_an_engine_that_preempts_and_aborts_gives_each_request_what_it_gets_alone(count, fast):
    """Random requests with everything on, in few blocks."""
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


def test_each_sequence_of_a_batch_is_processed_by_its_own_prefix():
    target, draft = pair()
    prompts, options = [PROMPT, PROMPT[4:], PROMPT[:2]], dict(frequency_penalty=0.8, repetition_penalty=1.3, logprobs=2)
    together = ms.generate(target, prompts, 12, **options)
    drafted = ms.speculate(target, prompts, ALL["model"](target, draft), 3, 12, **options)
    for prompt, out, other in zip(prompts, together, drafted, strict=True):
        assert_same(out, ms.generate(target, prompt, 12, **options))
        assert_same(other, out)


@pytest.mark.slow
def test_captured_passes_leave_such_requests_to_another_path():
    """A captured pass knows no prefix. The caller is told once."""
    target, draft = pair()
    captured = ms.Model("captured", target.transformer, target.tokenizer, target.end_tokens)
    captured.accelerate()
    options = dict(
        max_new_tokens=16, frequency_penalty=1.0, regex="[ab0,]+", ignore_eos=True, stop_token_ids=[0], logprobs=1
    )
    plain = ms.generate(target, PROMPT, **options)
    bare = {name: value for name, value in options.items() if name != "logprobs"}
    with warnings.catch_warnings(record=True) as told, patch("minispec.require.TOLD", set()):
        warnings.simplefilter("always")
        assert ms.generate(captured, PROMPT, **bare).tokens == plain.tokens
        for name in ("model", "ngram", "eagle, tree", "dflash"):
            assert_same(ms.speculate(captured, PROMPT, ALL[name](captured, draft), 3, **options), plain)
            assert ms.speculate(captured, PROMPT, ALL[name](captured, draft), 3, **bare).tokens == plain.tokens
    assert sum("by the host" in str(one.message) for one in told) == 1


# ---- sampled: the same distribution ----------------------------------------------------------------------------------
# The reference is written down here once more, one prefix and one token at a time.

PLAIN = ms.Sampling(temperature=1.0)
OPTIONS = (
    dict(repetition_penalty=1.6, frequency_penalty=0.7, presence_penalty=-0.4),
    dict(logit_bias={2: 1.5, 4: -2.0}, presence_penalty=1.2),
    dict(choices=[(3, 1, 2), (3, 4), (2, 2, 2), (1,)], stop_token_ids=[0], frequency_penalty=1.0),
    dict(min_new_tokens=2, stop_token_ids=[0, 3], repetition_penalty=0.5),
)

TOY = ["<end>", "a", "b", ".", "b."]
TAGGED = (  # the prompt, "aba", holds the tag as well; "b." may hold the end of it and more
    dict(constrain_after="ab", choices=[".a", "b"], stop_token_ids=[0], presence_penalty=1.0),
    dict(constrain_after="b", choices=["aa", "ba"], stop_token_ids=[0]),
)


def by_hand(logits: list[float], prompt: list[int], output: list[int], options: dict) -> list[float]:
    """Processed logits of one position."""
    made, ends = [], options.get("stop_token_ids", ())
    tag, answers = options.get("constrain_after"), options.get("choices", ())
    fits = [c for c in answers if tag is None and c[: len(output)] == tuple(output)]
    text = "".join(TOY[x] for x in output)
    for x, z in enumerate(logits):
        z += options.get("logit_bias", {}).get(x, 0.0)
        if x in prompt or x in output:
            z = z / options.get("repetition_penalty", 1.0) if z > 0 else z * options.get("repetition_penalty", 1.0)
        z -= options.get("frequency_penalty", 0.0) * list(output).count(x)
        z -= options.get("presence_penalty", 0.0) * (x in output)
        if x in ends and len(output) < options.get("min_new_tokens", 0):
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
def logits_after(context: tuple[int, ...], seed: int) -> torch.Tensor:
    """Logits of a toy model: other ones after every context."""
    generator = torch.Generator().manual_seed(hash((seed, *context)) % 2**31)
    return 1.5 * torch.randn(5, generator=generator, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("processed, widths", [(True, (1, 1)), (False, (1, 1)), (False, (2,))])
@pytest.mark.parametrize("options, length", [*zip(OPTIONS, (3, 2, 3, 2), strict=True), *((some, 3) for some in TAGGED)])
def test_the_distribution_of_whole_outputs_is_that_of_plain_decoding(options, length, processed, widths):
    """Exactly, through the real verifiers: a chain or two siblings, of a drafter that follows the processors or not."""
    prompt, model = (1, 2, 1), ms.Model("toy", random_model(vocab_size=5).transformer, toy_tokenizer(TOY))
    processors = ms.SamplingParams(**options).processors(model, prompt)

    def sequence(output) -> Sequence:
        tokens = [*processors.prompt, *output]
        return Sequence(0, tokens, PLAIN, None, processors=processors, prompt_length=len(prompt))

    def plain(output):
        z = by_hand(logits_after(output, 0).tolist(), prompt, output, options)
        return exact.plain_distribution(lambda _: torch.tensor(z, dtype=torch.float64).softmax(-1))

    @cache
    def q_after(output):
        logits = logits_after(output, 100)[None]
        return PLAIN.probs(process_next(logits, [sequence(output)], []) if processed else logits)[0]

    def cycle(output):
        known = {}  # of each draft: the target's distributions, by the code under test

        def judge(logits, q, tokens, parents, u):
            draft = Draft(tokens, q, parents if max(widths) > 1 else None)
            if tuple(tokens) not in known:
                verify.process(logits[None], [sequence(output)], [draft])  # in place
                known[tuple(tokens)] = PLAIN.probs(logits)
            p = known[tuple(tokens)]
            return verify.chain(p, q, tokens, u) if draft.parents is None else verify.tree(p, q, tokens, parents, u)

        target = lambda prefix: logits_after(prefix, 0)  # noqa: E731
        return tree_distribution(target, q_after, widths, output, verify=judge)

    found, expected = (exact.joint_distribution(step, length) for step in (cycle, plain))
    assert exact.total_variation(cut_at_ends(found, options), cut_at_ends(expected, options)) <= EXACT


def cut_at_ends(found: dict, options: dict) -> dict:
    """What follows an end token is never emitted."""
    cut, ends = Counter(), options.get("stop_token_ids", ())
    for output, probability in found.items():
        end = next((i + 1 for i, token in enumerate(output) if token in ends), len(output))
        cut[output[:end]] += probability
    return dict(cut)


# ---- against transformers -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_processed_logits_are_those_of_transformers():
    """On random logits and prefixes."""
    processors = pytest.importorskip("transformers").generation.logits_process
    target, random = pair()[0], Random(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        prompt, output = random.choices(range(64), k=9), random.choices(range(64), k=random.randint(0, 7))
        logits, ids = torch.randn(1, 64, generator=generator, dtype=torch.float64), torch.tensor([prompt + output])
        bias = {t: random.uniform(-3, 3) for t in random.sample(range(64), 5)}
        cases = {
            "repetition_penalty": (1.7, processors.RepetitionPenaltyLogitsProcessor(1.7)),
            "logit_bias": (bias, processors.SequenceBiasLogitsProcessor({(t,): b for t, b in bias.items()})),
            "min_new_tokens": (4, processors.MinNewTokensLengthLogitsProcessor(len(prompt), 4, [0])),
        }
        for name, (value, theirs) in cases.items():
            ours = ms.SamplingParams(**{name: value}).processors(target, prompt)(logits, [output])
            assert torch.allclose(ours, theirs(ids, logits.clone()), rtol=0, atol=1e-6), name


# ---- constraints ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "ngram", "medusa", "eagle, tree", "cascade"])
def test_constrained_outputs_are_whole_answers(name):
    """What comes out is what was asked for, and the whole of it. After a tag the same, by the letters of it: what comes
    before is free, and what comes after is a whole answer."""
    target, draft = pair()
    for seed, (tag, most) in product(range(3), ((None, 40), ("b0", 90))):
        eager = dict(logit_bias={END: 3.0}, temperature=1.0, seed=seed)  # it would rather end at once
        after = dict(constrain_after=tag) if tag else {}
        out = ms.speculate(target, PROMPT, ALL[name](target, draft), 4, most, regex=REGEX, **after, **eager)
        answer = out.text.partition(tag)[2] if tag else out.text
        assert out.finish_reason == "stop" and re.fullmatch(REGEX, answer), out.text
        out = ms.speculate(target, PROMPT, ALL[name](target, draft), 4, 40, choices=["ab0", "b,,"], seed=seed)
        assert out.text in ("ab0", "b,,")


@pytest.mark.parametrize("pattern", ["(ab|0)*,a{0,3}", "ab|a,", "(?:a(b|0){2})*|,", "[^a]b{0,2}", "(a?b?){2}"])
def test_allowed_tokens_are_those_that_lead_to_a_match(pattern):
    """By brute force: a token is allowed if some text that matches begins with what there is and the token."""
    texts = [text for n in range(9) for text in map("".join, product("ab0,", repeat=n)) if re.fullmatch(pattern, text)]
    follower = constraint.follower(pair()[0], [0], regex=pattern)
    outputs = [[], [1], *product(range(1, 5), repeat=2), *product(range(1, 5), repeat=3), [7], [20], [60], [3, 9]]
    for output in map(list, outputs):  # back and forth, at most three letters
        so_far = "".join(PIECES[token] for token in output)
        longer = [text[len(so_far) :] for text in texts if text.startswith(so_far)]
        right = ["" in longer, *(any(rest.startswith(piece) for rest in longer) for piece in PIECES[1:])]
        mask = follower.allowed(output)
        assert (mask is None and not longer) or mask.tolist() == right, (pattern, so_far)
    ended = [PIECES.index(min(texts, key=len) or ","), 0]
    assert follower.allowed(ended) is None


SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "n"],
    "properties": {"name": {"enum": ["fox", "cat"]}, "n": {"enum": [3, 12]}},
}


@pytest.mark.slow
def test_json_of_a_schema():
    """Drafts are followed and rolled back: the same as plain decoding, and JSON of the schema."""
    target = ms.load("micro", device="cpu", dtype=torch.float64)
    for options in (dict(json_schema=SCHEMA), dict(regex=r"(?i:yes|no)")):
        plain = ms.generate(target, "The", 40, **options)
        for name in ("quantized, 8 bits", "ngram", "lookahead"):
            assert ms.speculate(target, "The", ALL[name](target, target), 4, 40, **options).tokens == plain.tokens
        assert plain.finish_reason == "stop"
        if "json_schema" in options:
            said = json.loads(plain.text)
            assert said["name"] in ("fox", "cat") and isinstance(said["n"], int)
    with pytest.raises(ValueError, match="json_schema"):
        ms.generate(target, "The", 4, json_schema={"type": "nonsense"})
    with pytest.raises(ValueError, match="json_schema"):  # it compiles, and fails at the first token
        ms.generate(target, "The", 4, json_schema={"$ref": "#"})


def test_a_tag_is_found_by_its_text(tiny_text):
    """Spelt by a special token or by its letters, or by tokens that hold parts of a character."""
    tokenizer, inner = tiny_text.tokenizer, constraint.follower(tiny_text, [0], regex="fox( fox)*")
    letters = [token for letter in "<|user|>" for token in tokenizer.encode(letter).ids]
    output = [*tokenizer.encode("un café 🦊<|assistant|>").ids, *letters]
    for tag in ("<|assistant|>", "<|user|>", "café", "🦊"):
        after = constraint.After(inner, tag, tiny_text, [0])
        n = next(n for n in range(len(output) + 1) if tag in tokenizer.decode(output[:n], skip_special_tokens=False))
        for earlier in range(n):
            assert after.allowed(output[:earlier]).tolist() == [token != 0 for token in range(after.inner.size)]
        assert after.allowed(output[:n]).equal(inner.allowed([])) and after.allowed([*output[:n], 5]) is None


def test_text_of_a_real_vocabulary():
    """A choice may be spelt by any of its tokenisations."""
    target = ms.load("micro", device="cpu", dtype=torch.float64)
    for seed in range(4):
        out = ms.generate(target, "The fox was", 20, choices=[" happy", " sad and old"], temperature=1.5, seed=seed)
        assert out.text in (" happy", " sad and old") and out.finish_reason == "stop"


# ---- what cannot be -------------------------------------------------------------------------------------------------


def test_a_matcher_that_failed_on_a_draft_begins_anew(tiny_text):
    """It would allow anything from then on, and text that breaks the constraint would pass for success."""
    follower = constraint.follower(tiny_text, [0], regex="a{1,20}")
    begun = tiny_text.tokenizer.encode("aa").ids
    right, mask = follower.allowed(begun), follower.matcher
    mask.consume_token(tiny_text.tokenizer.encode("q").ids[-1])  # fails, as where a grammar grows too large
    assert mask.is_error() and not follower.allowed([*begun, 1]).any()
    assert follower.allowed(begun).equal(right) and not right.all()


def test_bad_options_are_refused_by_name():
    bad = dict(repetition_penalty=(0.0, "1"), presence_penalty=(float("nan"),))
    bad |= dict(logit_bias=({"a": 1}, {1: float("inf")}, {64: 1.0}), json_schema=([1],))
    bad["choices"] = ([], "ab", ["a", [1]])
    cases = [({name: value}, name) for name, values in bad.items() for value in values]
    cases += [({"regex": "a"} | other, "regex|constraint") for other in (dict(choices=["a"]), dict(ignore_eos=True))]
    tags = [({"constrain_after": tag, "regex": "a"}, "constrain_after") for tag in ("", 5)]
    tags.append(({"constrain_after": "a"}, "beside one of"))
    for options, said in (
        *cases,
        ({"regex": "("}, "regex"),
        ({"regex": 3}, "regex"),
        ({"regex": "axb"}, "no token"),
        *tags,
    ):
        with pytest.raises(ValueError, match=said):
            ms.generate(pair()[0], PROMPT, 4, **options)
            pytest.fail(f"{options} was taken")


def test_a_constraint_has_the_last_word():
    """Where min_new_tokens leaves nothing that it allows, it yields."""
    target = pair()[0]
    out = ms.generate(target, PROMPT, 9, choices=["ab"], min_new_tokens=9)
    assert (out.text, out.finish_reason) == ("ab", "stop")
