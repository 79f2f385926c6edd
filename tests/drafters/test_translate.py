"""Draft models of another vocabulary: what is shared, the exact distribution, greedy equality, caches, and padding."""

from functools import cache

import pytest
import torch
from loop_checks import SAMPLED_TOKENS
from sequence_distribution import assert_follows, joint_distribution, many_rows
from tiny_models import byte_level, random_model
from tokenizers import Tokenizer, decoders, models

import minispec as ms
from minispec.drafters.translate import Padded, Shared, same_tokens, spellings
from minispec.processors.constraint import common
from minispec.sampling import Coins, noise_of

TEXT = ["the fox said to the dog that the other dog undoes what the fox has done", "undo the dog, do the fox"]


def letters(order: str) -> Tokenizer:
    """One token for each letter, in this order."""
    tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate(order)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def words(size: int, text=TEXT) -> Tokenizer:
    return byte_level(size, [f"<|end {size}|>"], text)


def sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "<0x0A>": 1, "▁the": 2}, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


TINY = dict(hidden_size=16, intermediate_size=16, num_heads=2, num_kv_heads=1, head_dim=8, dtype=torch.float32)
ORDERS = "abcde", "fdbgac"  # shared: a, b, c, d, at other ids


@cache
def pair() -> tuple[ms.Model, ms.Model]:
    """A target over a … e and a stranger over f, d, b, g, a, c."""
    return tuple(
        random_model(vocab_size=len(order), num_layers=layers, seed=layers, tokenizer=letters(order), **TINY)
        for order, layers in zip(ORDERS, (3, 1), strict=True)
    )


@cache
def text_pair(dtype=torch.float64) -> tuple[ms.Model, ms.Model]:
    return tuple(
        random_model(vocab_size=tokenizer.get_vocab_size(), seed=seed, tokenizer=tokenizer, end_tokens=[0], dtype=dtype)
        for seed, tokenizer in enumerate((words(330), words(280, TEXT[1:])))
    )


# ---- what is shared ------------------------------------------------------------------------------------------------


def test_spellings():
    tokenizer = words(300)
    spelled = spellings(tokenizer)
    assert 0 not in spelled and len(spelled) == tokenizer.get_vocab_size() - 2  # the special token is no text
    text = "undo the café 日本 🦊\n"
    ids = tokenizer.encode(text).ids
    assert b"".join(spelled[id] for id in ids) == text.encode()
    single = {spelled[id] for id in range(1, 257) if id in spelled}
    assert single == {bytes([byte]) for byte in range(255)}  # 0xFF occurs in no UTF-8
    assert spellings(sentencepiece())[2] == b" the" and spellings(sentencepiece())[1] == b"\n"


def test_shared_tokens_have_the_same_bytes():
    target, draft = text_pair()
    shared = Shared(draft, target)
    own, theirs = spellings(draft.tokenizer), spellings(target.tokenizer)
    assert all(own[a] == theirs[b] for a, b in shared.id_of.items())
    assert len(shared.id_of) == len(set(own.values()) & set(theirs.values())) > 256
    assert len(set(shared.id_of.values())) == len(shared.id_of)  # one to one
    assert same_tokens(draft, target) is False and same_tokens(target, target)


def test_context():
    """The draft model's context is the same text; unfinished characters go byte by byte, special tokens not at all."""
    target, draft = text_pair()
    shared = Shared(draft, target)
    ids = target.encode("undoes the 日本 fox")
    for end in range(1, len(ids) + 1):
        own = shared.to_draft(ids[:end])
        spelled = [
            b"".join(spellings(model.tokenizer)[id] for id in some)
            for model, some in ((target, ids[:end]), (draft, own))
        ]
        assert spelled[0] == spelled[1]
    assert shared.to_draft([0, *ids]) == shared.to_draft(ids) == draft.encode("undoes the 日本 fox")


# ---- exact -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sampled_outputs_follow_the_target():
    """Through real caches; and what was sampled is in the q that is told."""
    target, draft = pair()
    drafter, prompt = ms.drafters.Model(draft, translate=True), [0, 1, 4, 2]
    with many_rows(seed=0):
        outs = ms.speculate(target, [prompt] * 4000, drafter, 3, SAMPLED_TOKENS, temperature=1.0)
    expected = joint_distribution(target, prompt, SAMPLED_TOKENS, ms.Sampling(temperature=1.0))
    assert_follows([out.tokens for out in outs], expected, "another vocabulary")
    assert 0.1 < ms.Trace.of(outs).acceptance_rate < 0.95
    assert not drafter.memory.lengths and not drafter.held


# ---- under rule="coupled" -------------------------------------------------------------------------------------------


def test_noise_goes_by_the_targets_positions_and_ids():
    """The same model with its letters in another order drafts what the target chooses; and a text that the draft model
    splits into fewer tokens is as long as it is for the target."""
    options = TINY | dict(vocab_size=5, num_layers=2)
    target, draft = (random_model(tokenizer=letters(order), **options) for order in ("abcde", "cdeab"))
    for part in (draft.transformer.embed_tokens, draft.transformer.lm_head):
        part.weight.data = part.weight.data[torch.tensor([2, 3, 4, 0, 1])].clone()
    drafter, how = ms.drafters.Model(draft, translate=True), dict(temperature=1.0, seed=1, rule="coupled")
    out = ms.speculate(target, [0, 1, 4, 2], drafter, 3, 80, **how)
    assert out.trace.acceptance_rate == 1 and out.tokens == ms.generate(target, [0, 1, 4, 2], 80, **how).tokens
    target, draft = text_pair()
    drafter = ms.drafters.Model(draft, translate=True)
    drafter.fit(target)
    context = ms.Sequence(1, target.encode("the fox said to the dog"), noise=12345)
    own = drafter._translated(context)
    assert len(own.tokens) != len(context.tokens) and noise_of([own], 1).tolist() == noise_of([context], 1).tolist()


# ---- greedy, and its caches ------------------------------------------------------------------------------------------

PROMPTS = ["undo the dog", "the fox 日本", "do", "said to the other dog that"]


@pytest.mark.slow
def test_greedy():
    """Token for token what `generate` emits, alone, in a batch and in an engine; and the draft model, which processes
    only what is new, drafts what it would draft after the whole text."""
    target, draft = text_pair()
    plain = [out.tokens for out in ms.generate(target, PROMPTS, 20)]
    drafter = ms.drafters.Model(draft, translate=True)
    outs = ms.speculate(target, PROMPTS, drafter, 3, 20)
    assert [out.tokens for out in outs] == plain
    drafted = [[cycle.drafted for cycle in out.trace.cycles] for out in outs]
    for prompt, tokens, cycles in zip(PROMPTS, plain, outs, strict=True):
        assert ms.speculate(target, prompt, drafter, 3, 20).tokens == tokens
        for cycle in cycles.trace.cycles:
            text = [*target.encode(prompt), *tokens][: cycle.committed]
            context = ms.Sequence(10**9, text, ms.Sampling(), Coins(0))
            [fresh] = drafter.propose([context], max(1, len(cycle.drafted)))
            drafter.forget(10**9)
            assert fresh.tokens[: len(cycle.drafted)] == cycle.drafted
    assert any(cycle for cycles in drafted for cycle in cycles)
    engine = ms.Engine(target, drafter, k=3)
    outs = engine.generate(PROMPTS, ms.SamplingParams(max_new_tokens=20), progress=False)
    assert [out.tokens for out in outs] == plain


def test_a_new_piece_changes_the_split_and_the_cache_is_rewound():
    """ "un" is a token of the draft model's, and so is "undo": after "do" nothing of the old split may stay."""
    target, draft = text_pair()
    shared = Shared(draft, target)
    un, undo = (shared.to_draft(target.encode(text)) for text in ("the un", "the undo the dog"))
    kept = common(un, undo)
    assert kept < len(un)  # the split has changed
    drafter = ms.drafters.Model(draft, translate=True)
    drafter.fit(target)
    context = ms.Sequence(1, target.encode("the un"), ms.Sampling(), Coins(0))
    drafter.propose([context], 2)
    context.tokens = [*context.tokens, *target.encode("do the dog")]
    drafter.settle(1, [], 0)
    assert drafter._translated(context).tokens == undo and drafter.memory.lengths[1] == kept


# ---- padding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(330, 352), (352, 330), (340, 384)])
def test_padded_vocabularies_need_no_wrapper(sizes):
    """One tokenizer, embeddings of two sizes: greedy outputs are plain decoding's, and the draft is of use."""
    tokenizer = words(330)
    target, draft = (random_model(vocab_size=size, num_layers=2, seed=0, tokenizer=tokenizer) for size in sizes)
    drafter = ms.drafters.Model(draft)
    plain = ms.generate(target, PROMPTS, 12)
    outs = ms.speculate(target, PROMPTS, drafter, 3, 12)
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    assert isinstance(drafter.vocabulary, Padded) and drafter.chain_model is None
    logits = torch.randn(2, sizes[1], generator=torch.Generator().manual_seed(0))
    probs = drafter.vocabulary.restrict(logits).softmax(-1)
    q = drafter.vocabulary.to_target(ms.drafters.Draft([1, 2], probs)).probs
    assert q.shape == (2, sizes[0]) and torch.allclose(q.sum(-1), torch.ones(2)) and not q[:, min(sizes) :].any()
    out = ms.speculate(target, PROMPTS[0], drafter, 3, 12, temperature=1.0, seed=0)
    assert len(out.tokens) == 12


def test_what_is_refused():
    target, draft = text_pair()
    with pytest.raises(ValueError, match="translate=True"):  # says what would help
        ms.speculate(target, "the", ms.drafters.Model(draft), 2, 4)
    for models_ in ((random_model(), draft), (target, random_model())):
        with pytest.raises(ValueError, match="tokenizers of both"):
            ms.speculate(models_[0], [1, 2], ms.drafters.Model(models_[1], translate=True), 2, 4)
    nothing = random_model(vocab_size=2, tokenizer=letters("xy"))
    with pytest.raises(ValueError, match="in common"):
        ms.speculate(pair()[0], [1], ms.drafters.Model(nothing, translate=True), 2, 4)
    ab, ba, abc, unknown = (ms.Model("x", None, tokenizer) for tokenizer in (*map(letters, ("ab", "ba", "abc")), None))
    assert same_tokens(ab, ba) is False and same_tokens(ab, abc) and same_tokens(ab, unknown) is None
