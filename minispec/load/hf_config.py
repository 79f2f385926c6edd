"""Hugging Face's config.json and our Config: one way and back.

A file names its architecture, and the names decide what is computed. So what model.py does not compute (another
activation, other rotations, another architecture) is refused here, before any weight is read.
"""

import math
from functools import partial

from ..experts import Experts
from ..model import Config, RopeScaling
from ..recurrent import DeltaRule
from ..require import require

DENSE = ("llama", "mistral", "qwen2", "qwen3", "qwen3_5_text")
SPARSE = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ARCHITECTURES |= {"qwen3_5_text": "Qwen3_5ForCausalLM"}
# DeltaRule's fields, and what Qwen3.5 has where its configuration does not say.
DELTA = {"key_heads": ("num_key_heads", 16), "value_heads": ("num_value_heads", 32), "key_dim": ("key_head_dim", 128)}
DELTA |= {"value_dim": ("value_head_dim", 128), "conv_size": ("conv_kernel_dim", 4)}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")  # Mixtral, Qwen, DeepSeek, others
MOST_LAYERS = 1000  # published models have up to 126; a configuration that says a billion must not keep us busy
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


# Config's fields that config.json has under a name of its own.
SIZES = {"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
SIZES |= {name: name for name in ("vocab_size", "hidden_size", "intermediate_size")}
OTHERS = {"num_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "max_length": "max_position_embeddings"}
OTHERS |= {"norm_eps": "rms_norm_eps", "tie_embeddings": "tie_word_embeddings", "mlp_bias": "mlp_bias"}


def from_hf(c: dict) -> Config:
    """Read a Hugging Face config.json (as a dict); refuse what model.py would compute wrongly."""
    if c.get("model_type") == "qwen3_5":  # with images: its text part alone
        tied = {key: c[key] for key in ("tie_word_embeddings",) if key in c}
        c = _object(c, "text_config") | tied
    kind = c.get("model_type")
    rope = _object(c, "rope_parameters")  # transformers ≥ 5 keeps theta and scaling together
    scaling = rope if "rope_type" in rope else _object(c, "rope_scaling")
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    _refuse_others(c, kind, rope_type, rope)
    sizes, max_length = {ours: _count(c, key) for ours, key in SIZES.items()}, _count(c, OTHERS["max_length"], 2048)
    require(sizes["num_layers"] <= MOST_LAYERS, f"at most {MOST_LAYERS}", num_hidden_layers=sizes["num_layers"])
    sliding = c.get("use_sliding_window") or "sliding_attention" in (c.get("layer_types") or ())
    if sliding or kind in ("mistral", "mixtral"):  # inside one window, sliding and full attention are the same
        max_length = min(max_length, _count(c, "sliding_window", max_length))
    bias, head_dim = bool(c.get("attention_bias", False)), sizes["hidden_size"] // sizes["num_heads"]
    head_dim, hybrid = _count(c, "head_dim", head_dim), kind == "qwen3_5_text"
    return Config(
        **sizes,
        num_kv_heads=_count(c, "num_key_value_heads", sizes["num_heads"]),
        head_dim=head_dim,
        max_length=max_length,
        norm_eps=_number(c, "rms_norm_eps", 1e-6),
        rope_theta=_number(c | rope, "rope_theta", 10_000.0),
        rope_scaling=RopeScaling(*(_number(scaling, key) for key in SCALING)) if rope_type == "llama3" else None,
        tie_embeddings=bool(c.get("tie_word_embeddings", False)),
        qkv_bias=bias or kind == "qwen2" or (kind == "qwen2_moe" and bool(c.get("qkv_bias", True))),
        out_bias=bias and kind not in ("qwen2", "qwen2_moe"),
        mlp_bias=bool(c.get("mlp_bias", False)),
        qk_norm=kind in ("qwen3", "qwen3_5_text", "qwen3_moe", "olmoe"),
        qk_norm_whole=kind == "olmoe",
        experts=_experts(c, kind) if kind in SPARSE else None,
        delta=_delta(c, sizes["num_layers"]) if hybrid else None,
        out_gate=hybrid,
        rotary_dim=int(head_dim * _number(c | rope, "partial_rotary_factor", 0.25)) if hybrid else None,
        head_vocab=None if c.get("head_vocab") is None else _count(c, "head_vocab"),
    )


def _refuse_others(c: dict, kind: str, rope_type: str, rope: dict) -> None:
    experts = next((key for key in EXPERTS if c.get(key)), None)
    quantised, act = c.get("quantization_config") or c.get("compression_config"), c.get("hidden_act", "silu")
    if kind not in DENSE + SPARSE or (kind in DENSE and experts):
        mixture = f" with {experts}={c[experts]!r}, a mixture of experts," if experts else ""
        known = f"dense models of {', '.join(DENSE)}, and mixtures of experts of {', '.join(SPARSE)}"
        raise ValueError(f"model_type={kind!r}{mixture} is not supported; supported are {known}")
    how = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
    rotated = 1.0 if kind == "qwen3_5_text" else _number(c | rope, "partial_rotary_factor", 1.0)
    for refused, what, why in (
        (quantised, f"quantization_config with quant_method={how!r}", "give the model in float16, bfloat16 or float32"),
        (act != "silu", f"hidden_act={act!r}", "model.py computes SwiGLU (silu)"),
        (rope_type not in ("default", "llama3"), f"rope_type={rope_type!r}", "supported are 'default' and 'llama3'"),
        (rotated != 1.0, f"partial_rotary_factor={rotated}", "every head dimension is rotated here"),
        (c.get("clip_qkv") is not None, f"clip_qkv={c.get('clip_qkv')!r}", "model.py clips nothing"),
    ):
        if refused:
            raise ValueError(f"{what} is not supported: {why}")


def _experts(c: dict, kind: str) -> Experts:
    """What a config.json says about its experts. Mixtral's and OLMoE's intermediate_size is that of one expert."""
    count = next((key for key in EXPERTS if c.get(key)), EXPERTS[0])
    layers, step = _count(c, "num_hidden_layers"), _count(c, "decoder_sparse_step", 1)
    dense = {*(c.get("mlp_only_layers") or ()), *(n for n in range(layers) if (n + 1) % step)}
    return Experts(
        count=_count(c, count),
        per_token=_count(c, "num_experts_per_tok"),
        size=_count(c, "intermediate_size" if kind in ("mixtral", "olmoe") else "moe_intermediate_size"),
        shared_size=_count(c, "shared_expert_intermediate_size") if kind == "qwen2_moe" else 0,
        renormalise=kind == "mixtral" or bool(c.get("norm_topk_prob", False)),
        dense_layers=tuple(sorted(dense)),
    )


def _delta(c: dict, layers: int) -> DeltaRule:
    """Which layers of Qwen3.5 are recurrent: those that layer_types says, else all but every fourth."""
    every = _count(c, "full_attention_interval", 4)
    kinds = c.get("layer_types") or ["linear_attention" if (n + 1) % every else "full_attention" for n in range(layers)]
    known = len(kinds) == layers and {*kinds} <= {"linear_attention", "full_attention"}
    require(known, f"linear_attention or full_attention for each of {layers} layers", layer_types=kinds)
    sizes = {ours: _count(c, f"linear_{key}", usual) for ours, (key, usual) in DELTA.items()}
    return DeltaRule(tuple(n for n, kind in enumerate(kinds) if kind == "linear_attention"), **sizes)


def _number(c: dict, key: str, default: float | None = None, whole: bool = False) -> float:
    """A number > 0, perhaps a whole one. Without a default it has to be there; null counts as not there."""
    value = default if c.get(key) is None else c[key]
    if value is None and key not in c:
        raise ValueError(f"{key!r} is missing, so this is no complete configuration")
    fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    require(fits, f"a {'whole ' * whole}number > 0", **{key: value})
    return value


_count = partial(_number, whole=True)


def _object(c: dict, key: str) -> dict:
    value = c.get(key) or {}
    require(isinstance(value, dict), "an object", **{key: value})
    return value


def to_hf(config: Config) -> dict:
    """The config.json that `from_hf` reads back as this Config, of a dense model."""
    if config.experts is not None:
        raise ValueError("a mixture of experts is not written: keep the folder that it was read from")
    qwen3 = "qwen3" if config.delta is None else "qwen3_5_text"
    if config.delta and not (config.qk_norm and config.out_gate):
        raise ValueError("a hybrid model is written as one of Qwen3.5, with qk_norm=True and out_gate=True")
    c = {
        "model_type": qwen3 if config.qk_norm else "qwen2" if config.qkv_bias and not config.out_bias else "llama",
        **{key: getattr(config, ours) for ours, key in (SIZES | OTHERS).items()},
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": config.out_bias,
    }
    if s := config.rope_scaling:
        values = s.factor, s.low_freq_factor, s.high_freq_factor, s.original_max_length
        c["rope_parameters"] |= {"rope_type": "llama3", **dict(zip(SCALING, values, strict=True))}
    if config.delta:
        delta, layers = config.delta, range(config.num_layers)
        c |= {f"linear_{key}": getattr(delta, ours) for ours, (key, _) in DELTA.items()}
        c["layer_types"] = ["linear_attention" if n in delta.layers else "full_attention" for n in layers]
        c["rope_parameters"]["partial_rotary_factor"] = (config.rotary_dim or config.head_dim) / config.head_dim
    return c if config.head_vocab is None else c | {"head_vocab": config.head_vocab}
