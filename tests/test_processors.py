"""Sampling that depends on the prefix: penalties, biases and constraints, with every drafter."""

import json
import re
import warnings
from itertools import product
from random import Random

import pytest
import torch
from all_drafters import ALL
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_checks import CHECKS, PIECES, PROMPT, assert_same, check_engine, one_drafter, pair, random_options

import minispec as ms
from minispec.processors import constraint

# ---- the same as plain decoding -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_processors(check):
    CHECKS[check]()


@pytest.mark.slow
@settings(max_examples=24)
@given(name=st.sampled_from(list(ALL)), seed=st.integers(0, 10**6), k=st.integers(1, 5), fast=st.booleans())
def test_greedy_outputs_are_those_of_plain_decoding(name, seed, k, fast):
    """Random processors and random ends, every drafter, in the loop and in an engine: the same tokens, text, reason to
    stop, and log-probabilities."""
    one_drafter(name, random_options(Random(seed)), k, fast)


@pytest.mark.slow
def test_an_engine_with_fixed_shapes():
    check_engine(10, fast=True)


def test_a_batch():
    """Each sequence by its own prefix."""
    target, draft = pair()
    prompts, options = [PROMPT, PROMPT[4:], PROMPT[:2]], dict(frequency_penalty=0.8, repetition_penalty=1.3, logprobs=2)
    together = ms.generate(target, prompts, 12, **options)
    drafted = ms.speculate(target, prompts, ALL["model"](target, draft), 3, 12, **options)
    for prompt, out, other in zip(prompts, together, drafted, strict=True):
        assert_same(out, ms.generate(target, prompt, 12, **options))
        assert_same(other, out)


@pytest.mark.slow
def test_where_passes_are_recorded():
    """What is recorded knows no prefix: another path serves such a request, and says so once."""
    target, draft = pair()
    recorded = ms.Model("recorded", target.transformer, target.tokenizer, target.end_tokens)
    recorded.accelerate()
    options = dict(
        max_new_tokens=16, frequency_penalty=1.0, regex="[ab0,]+", ignore_eos=True, stop_token_ids=[0], logprobs=1
    )
    plain = ms.generate(target, PROMPT, **options)
    bare = {name: value for name, value in options.items() if name != "logprobs"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert ms.generate(recorded, PROMPT, **bare).tokens == plain.tokens
        for name in ("model", "ngram", "eagle, tree", "dflash"):
            assert_same(ms.speculate(recorded, PROMPT, ALL[name](recorded, draft), 3, **options), plain)
            assert ms.speculate(recorded, PROMPT, ALL[name](recorded, draft), 3, **bare).tokens == plain.tokens
    assert sum("by the host" in str(one.message) for one in told) == 1


# ---- against transformers -------------------------------------------------------------------------------------------


def test_as_transformers_does_it():
    """Its processors for the same options, on random logits and prefixes."""
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
    target = ms.load("micro", device="cpu")
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
