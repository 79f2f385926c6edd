"""Hugging Face's config.json and our Config: one way and back."""

from __future__ import annotations

from ..model import Config, RopeScaling

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


def from_hf(c: dict) -> Config:
    """Read a Hugging Face config.json (as a dict); refuse what model.py would compute wrongly."""
    kind = c.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(f"model_type={kind!r} is not supported; supported are {', '.join(ARCHITECTURES)}")
    if (act := c.get("hidden_act", "silu")) != "silu":
        raise ValueError(f"hidden_act={act!r} is not supported: model.py computes SwiGLU (silu)")
    rope = c.get("rope_parameters") or {}  # transformers ≥ 5 keeps theta and scaling together
    scaling = rope if "rope_type" in rope else c.get("rope_scaling") or {}
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    if rope_type not in ("default", "llama3"):
        raise ValueError(f"rope_type={rope_type!r} is not supported; supported are 'default' and 'llama3'")
    if float(rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0))) != 1.0:
        raise ValueError("partial_rotary_factor below 1 is not supported: every head dimension is rotated here")
    max_length = c.get("max_position_embeddings", 2048)
    window = c.get("sliding_window")
    if window and (kind == "mistral" or c.get("use_sliding_window")):
        max_length = min(max_length, window)  # inside one window, sliding and full attention are the same
    heads = c["num_attention_heads"]
    bias = bool(c.get("attention_bias", False))
    return Config(
        vocab_size=c["vocab_size"],
        hidden_size=c["hidden_size"],
        intermediate_size=c["intermediate_size"],
        num_layers=c["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=c.get("num_key_value_heads") or heads,
        head_dim=c.get("head_dim") or c["hidden_size"] // heads,
        max_length=max_length,
        norm_eps=c.get("rms_norm_eps", 1e-6),
        rope_theta=rope.get("rope_theta", c.get("rope_theta", 10_000.0)),
        rope_scaling=RopeScaling(
            scaling["factor"],
            scaling["low_freq_factor"],
            scaling["high_freq_factor"],
            scaling["original_max_position_embeddings"],
        )
        if rope_type == "llama3"
        else None,
        tie_embeddings=bool(c.get("tie_word_embeddings", False)),
        qkv_bias=bias or kind == "qwen2",
        out_bias=bias and kind != "qwen2",
        mlp_bias=bool(c.get("mlp_bias", False)),
        qk_norm=kind == "qwen3",
        head_vocab=c.get("head_vocab"),
    )


def to_hf(config: Config) -> dict:
    """The config.json that `from_hf` reads back as this Config."""
    kind = "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias and not config.out_bias else "llama"
    c = {
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.out_bias,
        "mlp_bias": config.mlp_bias,
    }
    if s := config.rope_scaling:
        c["rope_parameters"] |= {
            "rope_type": "llama3",
            "factor": s.factor,
            "low_freq_factor": s.low_freq_factor,
            "high_freq_factor": s.high_freq_factor,
            "original_max_position_embeddings": s.original_max_length,
        }
    return c if config.head_vocab is None else c | {"head_vocab": config.head_vocab}
