"""`ms.load` of a live transformers model: the same tensors, the same logits, tokens and chat text."""

import pytest
import torch

import minispec as ms

transformers = pytest.importorskip("transformers")
SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
SMALL |= dict(num_key_value_heads=2, max_position_embeddings=128)
SMALL |= dict(bos_token_id=1, eos_token_id=[2, 3], pad_token_id=None)
SPARSE = dict(num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8)
STRETCHED = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
FAMILIES = {
    "Llama": {},
    "Llama, tied": dict(tie_word_embeddings=True),
    "Llama, stretched": dict(rope_parameters=STRETCHED | dict(original_max_position_embeddings=32)),
    "Qwen3": dict(head_dim=16),
    "Qwen2Moe": SPARSE | dict(num_experts=4, shared_expert_intermediate_size=24),
    "Olmoe": dict(num_experts=4, num_experts_per_tok=2),
}


def live(family: str, **more):
    name = family.split(",")[0]
    config = getattr(transformers, f"{name}Config")(**SMALL | FAMILIES[family] | more)
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_are_theirs_and_no_weight_is_copied(family):
    tokens, theirs = torch.arange(3, 40)[None] % 64, live(family)
    ours = ms.load(theirs)
    assert (ours.device, ours.dtype, ours.tokenizer) == (theirs.device, theirs.dtype, None)
    assert ours.end_tokens == {2, 3} and theirs.lm_head.weight.requires_grad
    torch.testing.assert_close(ours.transformer(tokens).logits, theirs(tokens).logits, rtol=0, atol=1e-5)
    held = {p.untyped_storage().data_ptr() for p in theirs.parameters()}
    assert {p.untyped_storage().data_ptr() for p in ours.transformer.parameters()} <= held


@pytest.mark.slow
def test_it_decodes_and_drafts_like_any_other():
    theirs = live("Qwen3")
    ours, prompt = ms.load(theirs), [5, 6, 7, 5, 6]
    with torch.inference_mode():
        said = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :].tolist()
    assert ms.generate(ours, prompt, 12).tokens == said
    assert ms.speculate(ours, prompt, ms.drafters.NGram(), 3, 12).tokens == said
    assert ms.load(theirs, dtype=torch.float64).dtype == torch.float64


@pytest.mark.slow
def test_its_tokenizer_gives_the_same_tokens_and_chat_text(tokenizer):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    special = dict(eos_token="<|end|>", pad_token="<|end|>", chat_template=template)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    model = live("Llama", vocab_size=tokenizer.get_vocab_size())
    theirs(["a", "longer"], padding=True, truncation=True, max_length=2)  # leaves both switched on
    ours = ms.load(model, tokenizer=theirs)
    text, messages = "the fox, and the sea", [{"role": "user", "content": "fox"}]
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.chat(messages) == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ms.load(model, tokenizer=tokenizer).encode(text) == ours.encode(text)


def test_what_cannot_be_computed_is_refused():
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=16)
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel .*model_type='gpt2'.*give a model"):
        ms.load(transformers.GPT2LMHeadModel(config))
    with pytest.raises(ValueError, match="tokenizer of type str"):
        ms.load(live("Llama"), tokenizer="fox")
    with pytest.raises(ValueError, match="type int"):
        ms.load(3)
