"""The model against transformers, and its own switches (tree masks, layers, hidden states) against plain passes."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minispec as ms
from minispec.generate import pad
from minispec.load.hf_config import from_hf
from minispec.model import RopeScaling
from minispec.tree import path_to, verify_mask

LLAMA3 = dict(rope_type="llama3", rope_theta=50_000.0, factor=8.0, original_max_position_embeddings=32)
LLAMA3 |= dict(low_freq_factor=1.0, high_freq_factor=4.0)
# Frequencies all over the place, so that short tests see fast, blended and stretched pairs.
LLAMA3_WIDE = LLAMA3 | dict(factor=32.0, low_freq_factor=0.5, high_freq_factor=8.0)
LLAMA3_WIDE |= dict(original_max_position_embeddings=128)
MILLION = dict(rope_type="default", rope_theta=1e6)


def shape(kind: str, hidden: int, heads: int, kv: int, layers: int = 2, **more) -> dict:
    sizes = dict(hidden_size=hidden, intermediate_size=hidden + 20, vocab_size=97, max_position_embeddings=256)
    counts = dict(num_attention_heads=heads, num_key_value_heads=kv, num_hidden_layers=layers)
    return dict(model_type=kind, bos_token_id=None, eos_token_id=None, pad_token_id=None) | sizes | counts | more


ONE, TWO, THREE = (dict(num_experts_per_tok=n, moe_intermediate_size=size) for n, size in ((1, 12), (2, 16), (3, 16)))
CONFIGS = {
    "llama-gqa-tied": shape("llama", 48, 6, 2, tie_word_embeddings=True),
    "llama-mqa": shape("llama", 40, 5, 1, 3),
    "llama-wide-heads": shape("llama", 24, 4, 2, head_dim=16),
    "llama-biases": shape("llama", 32, 4, 2, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3),
    "llama3": shape("llama", 32, 4, 2, rope_parameters=LLAMA3),
    "llama3-tied": shape("llama", 64, 4, 4, rope_parameters=LLAMA3_WIDE, tie_word_embeddings=True),
    "mistral-window": shape("mistral", 48, 4, 1, sliding_window=96, head_dim=16),
    "qwen2": shape("qwen2", 32, 4, 2),
    "qwen2-tied": shape("qwen2", 56, 7, 1, tie_word_embeddings=True, rope_parameters=MILLION),
    "qwen3": shape("qwen3", 32, 4, 2, head_dim=16),
    "qwen3-bias": shape("qwen3", 32, 6, 3, head_dim=32, attention_bias=True),
    "mixtral": shape("mixtral", 32, 4, 2, num_local_experts=5, num_experts_per_tok=2),
    "qwen3-moe": shape("qwen3_moe", 32, 4, 2, num_experts=7, **THREE, head_dim=8, norm_topk_prob=True),
    "qwen3-moe-half-dense": shape("qwen3_moe", 32, 4, 2, num_experts=4, **ONE, head_dim=16, decoder_sparse_step=2),
    "olmoe": shape("olmoe", 32, 4, 2, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False),
    "qwen2-moe": shape("qwen2_moe", 32, 4, 2, num_experts=3, **TWO, shared_expert_intermediate_size=20),
}
SHARDED = {"llama-mqa", "qwen2-tied", "qwen3"}


class Pair:
    """The same random weights in transformers and in minispec, by way of a folder on disk."""

    def __init__(self, name: str, folder):
        from transformers import AutoConfig, AutoModelForCausalLM

        keys = dict(CONFIGS[name])
        self.hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(keys.pop("model_type"), **keys)).eval()
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        for key, parameter in self.hf.named_parameters():
            # Norms and biases too: transformers starts them at 1 and 0, where a forgotten one would go unnoticed.
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 0.2 if parameter.ndim == 1 else 0.4 if "embed" in key else 1.5 / parameter.shape[-1] ** 0.5
            parameter.data.copy_(scale * noise + ("norm" in key))
        self.hf.save_pretrained(folder, max_shard_size="30KB" if name in SHARDED else "5GB")
        self.folder = folder
        self.ours = ms.load(folder, device="cpu")

    @torch.no_grad()
    def reference(self, tokens: list[int]) -> torch.Tensor:
        return self.hf(torch.tensor([tokens])).logits[0]  # [T, V]


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request, tmp_path_factory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp("hf") / request.param)


def some_tokens(count: int, vocab: int = 97, seed: int = 0) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


# ---------------------------------------------------------------- against transformers


def test_prefill_and_decoding_equal_transformers(pair):
    """Without a cache, and with one: a prompt, then token by token."""
    tokens = some_tokens(70)
    expected = pair.reference(tokens)
    assert expected.std() > 0.5  # a flat distribution would hide errors
    transformer, cache = pair.ours.transformer, pair.ours.transformer.new_cache(1, 70)
    assert gap(transformer(torch.tensor([tokens])).logits[0], expected) <= 1e-4
    steps = [transformer(torch.tensor([tokens[:37]]), cache).logits[0]]
    steps += [transformer(torch.tensor([[token]]), cache).logits[0] for token in tokens[37:]]
    assert gap(torch.cat(steps), expected) <= 1e-4


def test_ragged_batch_equals_transformers(pair):
    rows = [some_tokens(n, seed=n) for n in (1, 23, 9)]
    more = [some_tokens(6, seed=100 + n) for n in range(3)]
    transformer, cache = pair.ours.transformer, pair.ours.transformer.new_cache(3, 32)
    tokens, counts = pad(rows, "cpu")
    steps = [transformer(tokens, cache, counts=counts, last_only=True).logits]  # [B, 1, V]
    for column in range(6):
        steps.append(transformer(torch.tensor([[row[column]] for row in more]), cache).logits)
    ours = torch.cat(steps, 1)  # [B, 7, V]
    for row, (begin, rest) in enumerate(zip(rows, more, strict=True)):
        assert gap(ours[row], pair.reference(begin + rest)[len(begin) - 1 :]) <= 1e-4
    assert cache.lengths.tolist() == [7, 29, 15]


def test_hidden_states_equal_transformers(pair):
    tokens = torch.tensor([some_tokens(20, seed=3)])
    with torch.no_grad():
        expected = pair.hf(tokens, output_hidden_states=True).hidden_states
    depth = pair.ours.config.num_layers
    hidden = pair.ours.transformer(tokens, hidden_layers=range(depth)).hidden
    for n in range(depth):  # transformers norms its last one: compared by the logits above
        assert gap(hidden[n], expected[n]) <= 1e-4


def test_old_config_keys_mean_the_same(pair):
    new = json.loads((pair.folder / "config.json").read_text())
    rope = new.pop("rope_parameters")
    old = new | dict(rope_theta=rope.pop("rope_theta"))
    assert from_hf(old | dict(rope_scaling=None if rope == {"rope_type": "default"} else rope)) == pair.ours.config
    if rope["rope_type"] == "llama3":
        assert pair.ours.config.rope_scaling == RopeScaling(
            rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
        )
        rope["type"] = rope.pop("rope_type")  # the oldest spelling
        assert from_hf(old | dict(rope_scaling=rope)) == pair.ours.config


def test_a_sliding_window_bounds_the_length():
    keys = CONFIGS["mistral-window"]
    assert from_hf(keys).max_length == 96
    assert from_hf(keys | dict(sliding_window=None)).max_length == 256
    qwen = CONFIGS["qwen2"] | dict(sliding_window=64)
    assert from_hf(qwen | dict(use_sliding_window=False)).max_length == 256
    assert from_hf(qwen | dict(use_sliding_window=True)).max_length == 64
    assert from_hf(qwen | dict(layer_types=["full_attention", "sliding_attention"])).max_length == 64
    assert from_hf(qwen | dict(layer_types=["full_attention"] * 2)).max_length == 256


# ---------------------------------------------------------------- trees


@st.composite
def trees(draw, batch: int):
    size = draw(st.integers(1, 9))
    return [[draw(st.integers(-1, node - 1)) for node in range(size)] for _ in range(batch)]


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data(), seed=st.integers(0, 1000))
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_a_tree_pass_equals_one_pass_per_path(make_model, dtype, tolerance, data, seed):
    transformer = make_model(dtype=dtype).transformer
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3), label="prefix lengths")
    forest = data.draw(trees(len(lengths)), label="parents")
    size, batch = len(forest[0]), len(lengths)
    prefix = [some_tokens(n, 64, seed + row) for row, n in enumerate(lengths)]
    nodes = [some_tokens(size, 64, seed + 50 + row) for row in range(batch)]
    masks = [verify_mask(parents)[1:, 1:] for parents in forest]
    paths = [[path_to(parents, node) for node in range(size)] for parents in forest]
    depth = torch.tensor([[len(path) - 1 for path in row] for row in paths])  # [B, T]

    cache = transformer.new_cache(batch, 12 + size)
    padded = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in prefix])
    transformer(padded, cache, counts=torch.tensor(lengths))
    positions = cache.lengths[:, None] + depth
    logits = transformer(torch.tensor(nodes), cache, mask=torch.stack(masks), positions=positions).logits
    for row in range(batch):
        for node, path in enumerate(paths[row]):
            alone = transformer(torch.tensor([prefix[row] + [nodes[row][i] for i in path]])).logits[0, -1]
            assert gap(logits[row, node], alone) <= tolerance


# ---------------------------------------------------------------- layers, hidden states, counts, heads


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_first_n_layers_are_a_model_of_n_layers(make_model, n):
    tokens = torch.tensor([some_tokens(9, 64)])
    whole, short = make_model(num_layers=4).transformer, make_model(num_layers=n).transformer
    assert torch.equal(whole(tokens, layers=n).logits, short(tokens).logits)
    a, b = whole.new_cache(1, 16), short.new_cache(1, 16)
    for piece in tokens.split(3, dim=1):
        assert torch.equal(whole(piece, a, layers=n).logits, short(piece, b).logits)
    assert torch.equal(a.keys[:n], b.keys)
    assert not a.keys[n:].any()  # the layers that were skipped remember nothing


def test_hidden_layers(make_model):
    model = make_model(num_layers=3).transformer
    tokens = torch.tensor([some_tokens(7, 64), some_tokens(7, 64, 1)])
    out = model(tokens, hidden_layers=(0, 2, 3))
    assert set(out.hidden) == {0, 2, 3}
    assert torch.equal(out.hidden[0], model.embed_tokens(tokens))
    assert torch.equal(model.head(out.hidden[3]), out.logits)
    assert torch.equal(model.head(out.hidden[2]), model(tokens, layers=2).logits)
    assert model(tokens).hidden == {}


def test_last_only_and_counts(tiny):
    rows = [some_tokens(n, 64, n) for n in (4, 1, 6)]
    padded = torch.tensor([row + [63] * (6 - len(row)) for row in rows])
    counts = torch.tensor([4, 1, 6])
    cache = tiny.transformer.new_cache(3, 10)
    every = tiny.transformer(padded, cache, counts=counts).logits
    assert cache.lengths.tolist() == [4, 1, 6]
    last = tiny.transformer(padded, counts=counts, last_only=True).logits
    assert last.shape == (3, 1, 64)
    for row, tokens in enumerate(rows):
        alone = tiny.transformer(torch.tensor([tokens])).logits[0]
        assert gap(every[row, : len(tokens)], alone) <= 1e-10  # what pads the row changes nothing before it
        assert gap(last[row, 0], alone[-1]) <= 1e-10
    whole = tiny.transformer(padded).logits
    assert gap(tiny.transformer(padded, last_only=True).logits, whole[:, -1:]) <= 1e-10


def test_a_reduced_vocabulary_scores_only_its_own_tokens(make_model):
    draft, full = make_model(head_vocab=5, tie_embeddings=True), make_model(tie_embeddings=True)
    ids = torch.tensor([3, 60, 17, 0, 41])  # in any order
    draft.transformer.head_ids.copy_(ids)
    draft.transformer.lm_head.weight.copy_(full.transformer.lm_head.weight[ids])
    assert draft.transformer.lm_head.weight.shape == (5, 32)
    tokens = torch.tensor([some_tokens(6, 64)])
    reduced, whole = draft.transformer(tokens).logits, full.transformer(tokens).logits
    assert reduced.shape == whole.shape
    assert gap(reduced[..., ids], whole[..., ids]) <= 1e-12
    others = torch.ones(64, dtype=torch.bool).index_fill(0, ids, False)
    assert (reduced[..., others] == -torch.inf).all()
    probs = ms.Sampling(temperature=1.0).probs(reduced)
    assert (probs[..., others] == 0).all() and gap(probs.sum(-1), torch.ones(1, 6)) <= 1e-12
    assert set(ms.generate(draft, [1, 2], 20, temperature=1.0, seed=0).tokens) <= set(ids.tolist())


def test_gradients_flow_without_a_cache(make_model):
    """Training runs the same forward; generating first must not poison it (rope frequencies are kept)."""
    model = make_model(seed=9, rope_theta=777.0)
    ms.generate(model, [1, 2, 3], 2)
    model.transformer.requires_grad_(True)
    model.transformer(torch.tensor([[1, 2, 3]])).logits.logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.transformer.parameters())
