"""A tiny SmolLM2-like GGUF file, written with the `gguf` package: the other side's idea of the format."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from tokenizers import pre_tokenizers

import minispec as ms

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
MERGES = ["Ġ t", "h e", "Ġt he", "Ċ Ċ", "ĊĊ Ġ", "Ġ Ġ", "i n", "o n", "in g", "Ġ Â", "1 2"]
TOKENS = SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet()) + [m.replace(" ", "") for m in MERGES]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPE = dict(vocab_size=len(TOKENS), hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16)

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp does to q and k: in each head, row (half, pair) becomes row (pair, half)."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def tensors_of(model: ms.Model) -> dict[str, np.ndarray]:
    """The tensors of a model with a tied head, as llama.cpp names and orders them."""
    heads = {"self_attn.q_proj": model.config.num_heads, "self_attn.k_proj": model.config.num_kv_heads}
    state = {name: tensor.float().numpy() for name, tensor in model.transformer.state_dict().items()}
    named = {"token_embd.weight": state["embed_tokens.weight"], "output_norm.weight": state["norm.weight"]}
    for name, weight in state.items():
        if name.startswith("layers."):
            _, layer, part = name.removesuffix(".weight").split(".", 2)
            weight = permute(weight, heads[part]) if part in heads else weight
            named[f"blk.{layer}.{NAMES[part]}.weight"] = weight
    return named


def write(file: Path, model: ms.Model, quantise: Type = Type.F32) -> Path:
    """`quantise` is the type of all matrices; norms stay F32."""
    c = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(c.max_length)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_heads)
    writer.add_head_count_kv(c.num_kv_heads)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, weight in tensors_of(model).items():
        kind = quantise if weight.ndim == 2 else Type.F32
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
