"""The server through OpenAI's own package: what the server suites of vLLM and llama.cpp assert, as tables. With a
drafter and without, streamed and whole, an answer is that of `ms.generate`. What is refused: test_bad_requests.py."""

import json
from itertools import accumulate, product

import pytest
import torch
from live_server import PROMPT, expected, running, target

import minispec as ms

openai = pytest.importorskip("openai", reason="the openai package is not installed")
pytestmark = pytest.mark.slow
MESSAGES = [{"role": "user", "content": "Once upon"}]
TURNS = [
    {"role": "system", "content": "Tell stories."},
    *MESSAGES,
    {"role": "assistant", "content": " a time"},
    *MESSAGES,
]
LONG = "One day she saw a bird. " * 50
ENDS = {"logit_bias": {"0": 100}}  # the end token is by far the likeliest
E_ACUTE = {"response_format": {"type": "json_object", "schema": {"const": "é🦊"}}}


@pytest.fixture(scope="module", params=["plain", "drafted"])
def served(request):
    drafter = ms.drafters.Model(ms.load("micro-draft", dtype=target().dtype)) if request.param == "drafted" else None
    with running(drafter=drafter) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        yield server, client
        server.assert_all_free()


@pytest.fixture
def client(served):
    return served[1]


def complete(client, chat: bool = False, stream: bool = False, **fields):
    """A request of 12 greedy tokens, unless the fields say otherwise."""
    create = client.chat.completions.create if chat else client.completions.create
    asked = {"messages": MESSAGES} if chat else {"prompt": PROMPT}
    return create(**asked, model="micro", stream=stream, extra_body={"max_tokens": 12, "temperature": 0} | fields)


def joined(answers) -> list[dict]:
    """The choices of an answer, or those of a stream put together."""
    found = {}
    for one in (choice for answer in answers for choice in answer.choices):
        new = dict(text="", tokens=[], bytes=[], logprobs=[], offsets=[], reasons=[])
        whole, its = found.setdefault(one.index, new), one.logprobs
        chat = getattr(one, "delta", None) or getattr(one, "message", None)
        whole["text"] += (chat.content or "") if chat else one.text
        if its and chat:
            whole["tokens"] += [token.token for token in its.content]
            whole["bytes"] += [byte for token in its.content for byte in token.bytes]
            whole["logprobs"] += [token.logprob for token in its.content]
        elif its:
            whole["tokens"] += its.tokens
            whole["offsets"] += its.text_offset
            whole["logprobs"] += its.token_logprobs
        whole["reasons"] += [(one.finish_reason, one.stop_reason)] if one.finish_reason else []
    return [found[index] for index in sorted(found)]


def both_ways(client, chat: bool = False, **fields) -> list[dict]:
    """The choices of an answer: streamed they are the same as whole."""
    answer = complete(client, chat, **fields)
    whole, streamed = joined([answer]), joined(complete(client, chat, **fields, stream=True))
    assert [one.pop("logprobs") for one in streamed] == [pytest.approx(one["logprobs"], abs=1e-6) for one in whole]
    assert streamed == [{name: one[name] for name in one if name != "logprobs"} for one in whole]
    if answer.choices[0].logprobs and not fields.get("echo"):
        assert sum(len(one["tokens"]) for one in whole) == answer.usage.completion_tokens
    return whole


# ---- fields and the forms of answers ------------------------------------------------------------------------------

IDLE = [dict(user="a"), dict(store=False), dict(metadata={"a": "b"}), dict(service_tier="auto"), dict(stop=[])]
IDLE += [dict(stop_token_ids=[]), dict(n=1), dict(logit_bias={}), dict(response_format={"type": "text"}), dict(seed=1)]
IDLE_CHAT = [dict(tools=[]), dict(tool_choice="none"), dict(parallel_tool_calls=False), dict(logprobs=False)]
NEUTRAL = {"name": "y"}, {"extra": 0}, {"tool_calls": []}, {"content": [{"type": "text", "text": "Once upon"}]}
IDLE_CHAT += [dict(messages=[MESSAGES[0] | more]) for more in NEUTRAL]


def test_fields_that_ask_for_nothing_change_nothing(client):
    right = ms.generate(target(), MESSAGES, 12).text
    for fields in IDLE:
        assert complete(client, **fields).choices[0].text == expected(PROMPT, 12).text, fields
    for fields in (*IDLE, *IDLE_CHAT):
        assert complete(client, chat=True, **fields).choices[0].message.content == right, fields
    developer, system = ([{"role": role, "content": "Tell stories."}, *MESSAGES] for role in ("developer", "system"))
    assert both_ways(client, True, messages=developer) == both_ways(client, True, messages=system)


@pytest.mark.parametrize("chat", [False, True])
def test_an_answer_has_all_that_clients_look_at(client, chat):
    """And a conversation goes on with it."""
    for more in ({}, {"messages": TURNS} if chat else {"prompt": LONG}):
        answer, ids = complete(client, chat, max_tokens=5, **more), "chatcmpl-" if chat else "cmpl-"
        [choice], used = answer.choices, answer.usage
        prompt = more.get("messages", MESSAGES) if chat else more.get("prompt", PROMPT)
        assert answer.id.startswith(ids) and answer.object == ("chat.completion" if chat else "text_completion")
        assert (answer.model, choice.index, choice.finish_reason, choice.logprobs) == ("micro", 0, "length", None)
        assert used.prompt_tokens == len(target().encode(prompt)) and used.completion_tokens == 5
        assert used.total_tokens == used.prompt_tokens + 5 and answer.created > 0
        assert not chat or (choice.message.role == "assistant" and choice.message.content)


def test_parts_of_a_chat(client):
    """The first says who speaks, the last why it ended. Without a limit the reply is as long as fits."""
    *parts, last = complete(client, True, stream=True)
    assert [part.choices[0].delta.role for part in (*parts, last)] == ["assistant", *[None] * len(parts)]
    assert [part.choices[0].finish_reason for part in (*parts, last)] == [*[None] * len(parts), "length"]
    assert {(part.object, part.id) for part in parts} == {("chat.completion.chunk", last.id)}
    long = [{"role": "user", "content": "The dog ran. " * 90}]
    assert complete(client, True, messages=long, max_tokens=None, ignore_eos=True).usage.total_tokens == 512


def test_models(client):
    [one], found = client.models.list().data, client.models.retrieve("micro")
    assert one == found and (one.id, one.root, one.object, one.max_model_len) == ("micro", "micro", "model", 512)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("owner/other")


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("at_the_end, in_each_part", [*product((False, True), repeat=2)])
def test_usage_in_a_stream_comes_where_it_was_asked_for(client, chat, at_the_end, in_each_part):
    options = {"include_usage": at_the_end, "continuous_usage_stats": in_each_part}
    *parts, end = complete(client, chat, stream=True, stream_options=options, n=2)
    assert bool(end.usage) == (not end.choices) == at_the_end
    assert all(bool(part.usage) == (at_the_end and in_each_part) for part in parts[: None if at_the_end else -1])
    if at_the_end:
        assert end.usage.completion_tokens == 24 and end.usage.total_tokens == end.usage.prompt_tokens + 24
        counts = [part.usage.completion_tokens for part in parts if part.usage]  # of both choices together
        assert counts == sorted(set(counts))


@pytest.mark.parametrize("chat, prompt", [*product([False, True], [PROMPT, LONG])])
def test_every_part_of_a_stream_counts_its_tokens(client, chat, prompt):
    """What was listed so far is what usage says, also after a long prompt; the last part has text, too."""
    asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    asked |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    *parts, end = complete(client, chat, True, logprobs=True if chat else 5, **asked)
    seen, first = 0, parts[0]
    for part in parts:
        [choice] = part.choices
        its = choice.logprobs.content if chat else choice.logprobs.tokens
        seen += len(its)
        assert its and (choice.delta.content if chat else choice.text)
        assert part.usage.completion_tokens == seen and part.usage.prompt_tokens == end.usage.prompt_tokens > 0
        assert part.usage.total_tokens == part.usage.prompt_tokens + seen
        assert (part.id, part.model, part.created) == (first.id, "micro", first.created)
    assert seen == end.usage.completion_tokens == 12 and end.choices == []


PENALTIES = dict(presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.2)


def test_penalties_and_logit_bias_do_what_they_do_in_generate(client):
    banned = expected(PROMPT, 12).tokens[0]
    right = ms.generate(target(), PROMPT, 12, **PENALTIES, logit_bias={banned: -100.0})
    assert both_ways(client, **PENALTIES, logit_bias={str(banned): -100})[0]["text"] == right.text


def test_response_formats(client):
    for form, said in (
        ({"type": "json_object", "schema": {"const": "42"}}, '"42"'),
        ({"type": "json_schema", "json_schema": {"schema": {"const": "foo"}}}, '"foo"'),
        ({"type": "json_object", "schema": {"enum": [[1, 2]]}}, "[1,2]"),
    ):
        assert both_ways(client, True, response_format=form)[0]["text"] == said
    assert both_ways(client, True, response_format={"type": "json_object"})[0]["text"].startswith("{")
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}
    schema["additionalProperties"] = False
    asked = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "max_tokens": 40}
    assert both_ways(client, **asked)[0]["text"] == ms.generate(target(), PROMPT, 40, json_schema=schema).text
    later = complete(client, constrain_after=".", **asked | {"max_tokens": 80}).choices[0].text
    assert json.loads(later.partition(".")[2])["colour"] in ("red", "green")


# ---- prompts and choices -------------------------------------------------------------------------------------------


def test_lists_of_prompts(client):
    """Text and tokens: each gets the answer that it gets alone; the prompts' tokens are counted once."""
    ids = target().encode(PROMPT)
    for prompts in ([PROMPT, "The old dog"], [ids, ids], [ids, PROMPT], [PROMPT], [ids]):
        right = [expected(PROMPT if prompt is ids else prompt, 12).text for prompt in prompts]
        assert [one["text"] for one in both_ways(client, prompt=prompts, n=2)] == [t for t in right for _ in range(2)]
        usage = complete(client, prompt=prompts, n=2).usage
        assert usage.prompt_tokens == sum(len(p if p is ids else target().encode(p)) for p in prompts)
        assert usage.completion_tokens == 24 * len(prompts)


@pytest.mark.parametrize("chat", [False, True])
def test_n_choices_have_seeds_of_their_own(served, chat):
    """As a batch of `generate` has. Drafts take random numbers of their own."""
    server, client = served
    if server.engine.drafter is None:
        found = both_ways(client, chat, n=3, seed=42, temperature=1)
        right = ms.generate(target(), [MESSAGES if chat else PROMPT] * 3, 12, temperature=1.0, seed=42)
        assert [one["text"] for one in found] == [out.text for out in right]
    answer = complete(client, chat, n=3, temperature=1, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2] and answer.usage.completion_tokens == 36
    assert len({str(choice.message.content if chat else choice.text) for choice in answer.choices}) == 3


def test_seeds_differ_and_repeat(client):
    """With a drafter, too, as long as the load is the same and k is given."""
    first, again = ([complete(client, temperature=1, seed=i, n=2).choices for i in range(4)] for _ in range(2))
    assert first == again and len({choice.text for choices in first for choice in choices}) == 8


def test_choices_share_the_blocks_of_a_long_prompt(served):
    server, client = served
    hits = server.engine.pool.counts["prefix_tokens"]
    complete(client, prompt="The dog and the cat went home. " * 50, n=8, max_tokens=2)
    assert server.engine.pool.counts["prefix_tokens"] - hits > 5 * 256


# ---- log-probabilities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [None, 0, 5])
def test_as_many_logprobs_as_were_asked_for(client, most):
    its = complete(client, logprobs=most).choices[0].logprobs
    chats = complete(client, True, logprobs=most is not None, top_logprobs=most).choices[0].logprobs
    if most is None:
        assert its is None and chats is None
        return
    assert len(its.tokens) == len(chats.content) == 12
    assert all(max(1, most) <= len(top) <= most + 1 for top in its.top_logprobs)
    assert all(top[token] == p for token, p, top in zip(its.tokens, its.token_logprobs, its.top_logprobs, strict=True))
    assert all(len(one.top_logprobs) == most for one in chats.content)
    right = ms.generate(target(), MESSAGES, 12, logprobs=most).logprobs
    assert [one.logprob for one in chats.content] == pytest.approx([one.logprob for one in right])
    tops = [top.logprob for one in chats.content for top in one.top_logprobs]
    assert tops == pytest.approx([p for one in right for _, p in one.top])


LISTED = [dict(), E_ACUTE | dict(max_tokens=20), E_ACUTE | dict(max_tokens=5), dict(stop=["girl"])]
LISTED += [dict(stop=["ittle"]), dict(stop_token_ids=target().encode(" girl"))]
LISTED += [dict(ENDS, min_tokens=5), dict(ENDS, ignore_eos=True)]


@pytest.mark.parametrize("fields", LISTED)
def test_listed_tokens_spell_the_text(client, fields):
    """All that were emitted are there, the end token too; parts of a character have its bytes."""
    one, chat = both_ways(client, logprobs=2, **fields)[0], both_ways(client, True, logprobs=True, **fields)[0]
    text = one["text"].removesuffix("\ufffd")  # of a character that was cut off
    assert "".join(one["tokens"]) == text
    assert one["offsets"] == [*accumulate(map(len, one["tokens"][:-1]), initial=0)]
    assert bytes(chat["bytes"]).decode(errors="replace") == chat["text"]
    if "response_format" in fields and fields["max_tokens"] > 5:
        assert json.loads(one["text"]) == json.loads(chat["text"]) == "é🦊"


def by_hand(ids: list[int]) -> list[float]:
    with torch.inference_mode():
        logits = target().transformer(torch.tensor([ids]), target().transformer.new_cache(1, len(ids))).logits[0]
    return logits[:-1].log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


@pytest.mark.parametrize("most", [0, 1, 12])
def test_echo(client, most):
    """The prompt, then its continuation, as text and as log-probabilities; also where the prompt is in the cache."""
    long = "The dog saw a café. " * 15
    for prompt in (PROMPT, long, long, target().encode(PROMPT), [0, *target().encode("A 🦊 sat")]):
        ids = target().encode(prompt)
        text = prompt if isinstance(prompt, str) else target().tokenizer.decode(ids, skip_special_tokens=False)
        one = both_ways(client, prompt=prompt, echo=True, logprobs=1, max_tokens=most)[0]
        new = ms.generate(target(), ids, most).tokens if most else []
        assert one["text"] == "".join(one["tokens"]) == text + target().decode(new)
        assert one["logprobs"][0] is None and one["logprobs"][1:] == pytest.approx(by_hand(ids + new), abs=1e-6)
    answer = complete(client, prompt=[PROMPT, "A dog"], echo=True, logprobs=1, max_tokens=most)
    for choice, opening in zip(answer.choices, (PROMPT, "A dog"), strict=True):
        tops = choice.logprobs.top_logprobs
        assert choice.text.startswith(opening) and tops[0] is None and all(1 <= len(top) <= 2 for top in tops[1:])
    assert complete(client, echo=True).choices[0].text == PROMPT + expected(PROMPT, 12).text


# ---- stops ---------------------------------------------------------------------------------------------------------

THERE = ", there was a little girl named Emma who lived in a"  # what follows PROMPT
STOPS = [
    (dict(stop="e"), ", th", "e"),
    (dict(stop="e", min_tokens=2), ", there was a littl", "e"),
    (dict(stop=["little girl", "le"]), ", there was a litt", "le"),  # the one that is complete first
    (dict(stop=["le", "little"]), ", there was a litt", "le"),  # both at once: the first of the list
    (dict(stop=["little", "le"]), ", there was a ", "little"),
    (dict(stop="lit", min_tokens=11), THERE, None),
    (dict(stop_token_ids=target().encode(" was")), ", there", target().encode(" was")[0]),
    (dict(stop_token_ids=target().encode(" was"), min_tokens=3), None, None),
]


@pytest.mark.parametrize("fields, text, reason", STOPS)
def test_where_an_answer_stops(client, fields, text, reason):
    """As in `generate` and in `speculate`."""
    one, least = both_ways(client, **fields)[0], fields.get("min_tokens", 0)
    ours = {name: fields[name] for name in fields if name != "min_tokens"} | {"min_new_tokens": least}
    drafted = ms.speculate(target(), PROMPT, ms.drafters.NGram(), 4, 12, **ours)
    for right in (ms.generate(target(), PROMPT, 12, **ours), drafted):
        assert one["text"] == right.text and text in (None, right.text)
        assert (right.finish_reason, right.stop_reason) == ("stop" if reason else "length", reason)
        assert one["reasons"] == [(right.finish_reason, right.stop_reason)]


@pytest.mark.parametrize("least", [0, 3])
def test_a_special_token_stops_by_its_name(client, least):
    answer = complete(client, **ENDS, ignore_eos=True, stop=["<|end|>"], min_tokens=least)
    assert (answer.choices[0].text, answer.choices[0].stop_reason) == ("", "<|end|>")
    assert answer.usage.completion_tokens == least + 1
