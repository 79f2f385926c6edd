"""Plain generation: the same tokens alone and in a batch, and an end exactly where it was asked for."""

import math

import pytest
import torch
from fakes import Scripted
from hypothesis import given, settings
from hypothesis import strategies as st

import minispec as ms


def scripted(model: ms.Model, prompt: str | list[int], script: list[int]) -> ms.Model:
    """`model` with its tokenizer and end tokens, but saying what the script says after the prompt."""
    n, last = len(model.encode(prompt)), len(script) - 1
    stand_in = Scripted(lambda text: script[max(0, min(len(text) - n, last))], model.config.vocab_size, 512)
    return ms.Model("scripted", stand_in, model.tokenizer, model.end_tokens, model.chat_template)


def ids(model: ms.Model, text: str) -> list[int]:
    return model.tokenizer.encode(text).ids


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize("count", [1, 2, 17])
def test_exactly_max_new_tokens_and_only_new_ones(tiny, count):
    out = ms.generate(tiny, [5, 6, 7], max_new_tokens=count)
    assert len(out.tokens) == count and out.prompt_tokens == 3 and out.finish_reason == "length"
    assert out.text is None and out.seconds > 0 and out.tokens_per_second == len(out.tokens) / out.seconds


def test_one_pass_per_token(tiny_text):
    model = scripted(tiny_text, [7, 8, 9], [20, 21, 22, 23, 24])
    out = ms.generate(model, [7, 8, 9], max_new_tokens=5)
    assert out.tokens == [20, 21, 22, 23, 24]  # the prompt, then every token but the last
    assert [one.tokens for one in model.transformer.readings] == [[[7, 8, 9]], [[20]], [[21]], [[22]], [[23]]]


@pytest.mark.slow
@settings(max_examples=15)
@given(prompts=st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=12), min_size=1, max_size=4))
def test_a_ragged_batch_equals_single_runs(tiny, prompts):
    together = ms.generate(tiny, prompts, max_new_tokens=12)
    assert [out.tokens for out in together] == [ms.generate(tiny, p, max_new_tokens=12).tokens for p in prompts]
    assert [out.prompt_tokens for out in together] == [len(p) for p in prompts]


@pytest.mark.slow
def test_rows_of_a_batch_end_on_their_own(tiny_text):
    prompts = ["The fox", "One day the bird", "sea"]
    runs = [ms.generate(tiny_text, p, max_new_tokens=40) for p in prompts]
    ends = ms.Model("ends", tiny_text.transformer, tiny_text.tokenizer, {runs[0].tokens[3], runs[1].tokens[20]})
    alone = [ms.generate(ends, p, max_new_tokens=40) for p in prompts]
    together = ms.generate(ends, prompts, max_new_tokens=40)
    told = ([(o.tokens, o.text, o.finish_reason) for o in outs] for outs in (together, alone))
    assert next(told) == next(told)
    assert len({len(out.tokens) for out in together}) > 1


# ---------------------------------------------------------------- prompts


def test_a_prompt_is_text_or_ids_or_a_tensor(tiny_text):
    text = "the old wood"
    tokens = ids(tiny_text, text)
    expected = ms.generate(tiny_text, text, 8).tokens
    for prompt in (tokens, torch.tensor(tokens)):  # and all that load/test_prompts.py encodes
        assert ms.generate(tiny_text, prompt, 8).tokens == expected
    for batch in ([text], [tokens], torch.tensor([tokens]), [torch.tensor(tokens)]):
        (out,) = ms.generate(tiny_text, batch, 8)
        assert out.tokens == expected
    mixed = ms.generate(tiny_text, [text, tokens[:2], torch.tensor(tokens)], 8)
    assert mixed[0].tokens == mixed[2].tokens == expected


def test_chat_messages(tiny_text):
    messages = [{"role": "user", "content": "see the sea"}]
    rendered = "<|user|>see the sea<|end|><|assistant|>"
    assert tiny_text.chat(messages) == rendered
    tokens = tiny_text.encode(messages)
    assert tokens[0] == 1 and tokens[-2:] == [0, 2]  # the markers are one token each
    assert ms.generate(tiny_text, messages, 6).tokens == ms.generate(tiny_text, tokens, 6).tokens
    first, second = ms.generate(tiny_text, [messages, [*messages, {"role": "assistant", "content": "no"}]], 6)
    assert first.tokens == ms.generate(tiny_text, messages, 6).tokens
    assert second.prompt_tokens > first.prompt_tokens


# ---------------------------------------------------------------- ends


def test_an_end_token_ends_and_stays_in_tokens(tiny_text):
    script = [*ids(tiny_text, "the end"), 0, *ids(tiny_text, "never said")]
    model = scripted(tiny_text, "so", script)
    out = ms.generate(model, "so", 50)
    assert out.finish_reason == "stop" and out.tokens == script[: script.index(0) + 1] and out.text == "the end"
    at_the_limit = ms.generate(model, "so", script.index(0) + 1)
    assert at_the_limit.finish_reason == "stop"


@pytest.mark.parametrize("stop, text", [("zebra", "One day the bird and the fox."), (["fox", "e b"], "One day th")])
def test_stop_strings_are_cut_and_never_streamed(tiny_text, stop, text):
    script = ids(tiny_text, "One day the bird and the fox.")
    pieces: list[str] = []
    out = ms.generate(scripted(tiny_text, "Say: ", script), "Say: ", len(script), stop=stop, stream=pieces.append)
    assert out.text == text == "".join(pieces) and all(pieces)
    assert out.finish_reason == ("length" if stop == "zebra" else "stop")
    assert out.tokens == script[: len(out.tokens)]  # all that were sampled, those that complete the stop string too


# Few letters, so that stop strings often begin, fail and begin again; the others take two to four bytes each.
LETTERS = st.text(alphabet="ab é日🦊\ufffd", max_size=30)


def stopped(text: str, stops: list[str], after: int) -> str | None:
    """The text up to the stop string that is complete first, beyond so many characters; of several the first listed."""
    ends = [(end, s) for end in range(after + 1, len(text) + 1) for s in stops if text[:end].endswith(s)]
    return text[: ends[0][0] - len(ends[0][1])] if ends else None


@pytest.mark.slow
@settings(max_examples=300)
@given(
    text=LETTERS,
    stops=st.lists(st.text(alphabet="ab é日🦊", min_size=1, max_size=4), max_size=3),
    least=st.integers(0, 6),
    streamed=st.booleans(),
)
def test_the_text_ends_before_the_stop_string_that_is_complete_first(tiny_text, text, stops, least, streamed):
    """However the text is cut into tokens: the tokenizer knows few of these characters, most come as single bytes. What
    is complete before min_new_tokens does not count."""
    tokens = ids(tiny_text, text) or [1]
    pieces: list[str] = []
    least = min(least, len(tokens))
    params = ms.SamplingParams(max_new_tokens=len(tokens), stop=stops, min_new_tokens=least)
    sequence = ms.Sequence.of(tiny_text, [1], params, stream=pieces.append if streamed else None)
    for token in tokens:
        sequence.emit([token])
        sequence.writer.flush()
        if sequence.ended:
            break
        assert sequence.writer.text.startswith("".join(pieces))
    out = sequence.result(1.0)
    assert not streamed or ("".join(pieces) == out.text and all(pieces))
    said, after = tiny_text.decode(out.tokens), len(tiny_text.decode(tokens[:least]).rstrip("\ufffd"))
    if out.finish_reason == "stop":  # ended by the very token that completed one
        assert out.text == stopped(said, stops, after) and out.stop_reason in stops
        assert stopped(tiny_text.decode(out.tokens[:-1]).rstrip("\ufffd"), stops, after) is None
    else:
        assert out.text == said == text and stopped(text, stops, after) is None


# ---------------------------------------------------------------- errors, before any work


def test_the_models_length_can_be_used_up(make_model):
    model = make_model(max_length=16)
    assert len(ms.generate(model, [5] * 10, max_new_tokens=6).tokens) == 6
    with pytest.raises(ValueError, match="16"):
        ms.generate(model, [5] * 10, max_new_tokens=7)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_are_an_error_not_a_token(make_model, temperature):
    model = make_model()
    model.transformer.norm.weight[3] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        ms.generate(model, [1, 2, 3], temperature=temperature)
