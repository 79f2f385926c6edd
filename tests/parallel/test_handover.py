"""What is handed over: option names that exist, folders that others can read, and the same greedy tokens elsewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import minispec as ms
from minispec.drafters.eagle import Form
from minispec.drafters.medusa import MedusaHeads
from minispec.load.heads import heads_for, save_heads
from minispec.parallel import export, handover
from minispec.parallel.handover import ENGINES, Order
from recipes.dflash import head_from, shape_of

HUB = "meta-llama/Llama-3.1-8B-Instruct"
# What the sources in handover.READ define. A name that is not here does not exist there.
VLLM_FIELDS = set("method model num_speculative_tokens prompt_lookup_max prompt_lookup_min draft_sample_method".split())
VLLM_METHODS = {"ngram", "suffix", "draft_model", "medusa", "eagle3", "dflash"}
SPECULATIVE = "algorithm draft-model-path num-steps eagle-topk num-draft-tokens use-rejection-sampling "
SPECULATIVE += "ngram-max-bfs-breadth ngram-max-trie-depth dflash-block-size"
SGLANG_OPTIONS = {"--model-path", "--tp-size", *(f"--speculative-{name}" for name in SPECULATIVE.split())}


def order(drafter: str, **options) -> Order:
    return Order(drafter, HUB, draft="a/draft", heads="some/heads", **options)


# ---------------------------------------------------------------- commands


def test_vllm_gets_a_config_of_known_fields():
    for drafter in handover.DRAFTERS:
        words = shlex.split(handover.vllm(order(drafter, k=5, n_max=4, n_min=2, ranks=2)).replace("\\\n", " "))
        assert words[:4] == ["vllm", "serve", HUB, "--speculative-config"], drafter
        assert words[5:] == ["--tensor-parallel-size", "2"], drafter
        config = json.loads(words[4])
        assert set(config) <= VLLM_FIELDS and config["method"] in VLLM_METHODS, drafter
        assert config["num_speculative_tokens"] == 5
        assert drafter != "ngram" or (config["prompt_lookup_max"], config["prompt_lookup_min"]) == (4, 2)


def test_sglang_gets_known_options():
    for drafter in ("ngram", "model", "eagle", "dflash"):
        words = shlex.split(handover.sglang(order(drafter, k=5, ranks=2)).replace("\\\n", " "))
        assert {word for word in words if word.startswith("--")} <= SGLANG_OPTIONS, drafter
        counts = "--speculative-dflash-block-size" if drafter == "dflash" else "--speculative-num-draft-tokens"
        assert words[words.index(counts) + 1] == "6"  # with the last token
        assert words[words.index("--tp-size") + 1] == "2"


def test_what_an_engine_lacks_is_refused():
    lacks = {"sglang": ("suffix", "medusa"), "transformers": ("suffix", "medusa", "eagle", "dflash")}
    for engine, drafter in ((engine, drafter) for engine, drafters in lacks.items() for drafter in drafters):
        with pytest.raises(ValueError, match=f"{drafter}.* no such .*; take "):
            ENGINES[engine](order(drafter))
    with pytest.raises(ValueError, match="ranks=2"):
        handover.transformers(order("ngram", ranks=2))


def test_bad_orders_are_refused():
    for arguments, key in (
        (dict(drafter="magic"), "drafter='magic'"),
        (dict(drafter="ngram", k=0), "k=0"),
        (dict(drafter="ngram", n_max=1, n_min=2), "n_max=1"),
        (dict(drafter="model"), "--draft"),
        (dict(drafter="eagle"), "--heads"),
    ):
        with pytest.raises(ValueError, match=re.escape(key)):
            Order(**dict(model=HUB) | arguments)


# ---------------------------------------------------------------- the command line


def test_a_hub_model_is_named_as_it_is(run):
    code, out, _ = run("handover", "--engine", "vllm", "--drafter", "ngram", "--model", HUB)
    assert code == 0 and f"vllm serve {HUB}" in out and "commit" in out.splitlines()[0]
    code, out, _ = run("handover", "--engine", "sglang", "--drafter", "ngram", "--model", "smollm2")
    assert code == 0 and "HuggingFaceTB/SmolLM2-135M-Instruct" in out


def test_what_no_engine_can_read_asks_for_an_export(run):
    code, out, err = run("handover", "--engine", "vllm", "--drafter", "ngram", "--model", "micro")
    assert (code, out) == (2, "") and "--export" in err


def test_nothing_is_written_for_an_engine_that_refuses(run, tmp_path):
    code, _, _ = run("handover", "--engine", "sglang", "--drafter", "suffix", "--export", tmp_path / "x")
    assert code == 2 and not (tmp_path / "x").exists()


def test_medusa_heads_are_exported_and_all_of_them_draft(run, tmp_path, tiny_folder):
    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    MedusaHeads(target, 3).save(target, tmp_path / "heads")
    options = ["--engine", "vllm", "--drafter", "medusa", "--model", tiny_folder, "--heads", tmp_path / "heads"]
    assert run("handover", *options)[0] == 2  # ours, so that it has to be exported
    code, out, _ = run("handover", *options, "--export", tmp_path / "x")
    assert code == 0 and '"num_speculative_tokens": 3' in out and str(tmp_path / "x" / "medusa") in out
    assert (tmp_path / "x" / "medusa" / "model.safetensors").is_file()


def test_our_eagle_heads_are_rewritten(run, tmp_path, tiny_folder):
    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    ms.drafters.EagleHead(target, torch.arange(8)).save(target, tmp_path / "heads")
    options = ["--engine", "vllm", "--drafter", "eagle", "--model", tiny_folder, "--heads", tmp_path / "heads"]
    code, _, err = run("handover", *options)
    assert code == 2 and "--export" in err  # ours, so that it has to be exported
    code, out, _ = run("handover", *options, "--export", tmp_path / "x")
    assert code == 0 and str(tmp_path / "x" / "eagle") in out
    config = json.loads((tmp_path / "x" / "eagle" / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3" and config["transformer_layer_config"]["attention_bias"]


def test_sglang_gets_the_authors_layouts(run, tmp_path, tiny_folder):
    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    eagle = ms.drafters.EagleHead(target, torch.arange(8), [1], form=Form.eagle3())
    eagle.save(target, tmp_path / "eagle3")
    ms.drafters.EagleHead(target, torch.arange(8)).save(target, tmp_path / "ours")
    drafter = head_from(target.transformer, torch.arange(8), mask_token=9)
    save_heads(drafter, tmp_path / "dflash", heads_for(target, "dflash") | shape_of(drafter))
    options = ["--engine", "sglang", "--model", tiny_folder, "--export", tmp_path / "x"]
    code, out, _ = run("handover", "--drafter", "eagle", "--heads", tmp_path / "eagle3", *options)
    assert code == 0 and str(tmp_path / "x" / "eagle") in out
    assert "eagle_config" in json.loads((tmp_path / "x" / "eagle" / "config.json").read_text())
    code, out, _ = run("handover", "--drafter", "dflash", "--heads", tmp_path / "dflash", *options)
    assert code == 0 and str(tmp_path / "x" / "dflash") in out
    assert "dflash_config" in json.loads((tmp_path / "x" / "dflash" / "config.json").read_text())
    code, _, err = run("handover", "--drafter", "eagle", "--heads", tmp_path / "ours", *options)
    assert code == 2 and "SGLang" in err  # biases, which it would leave out


def test_medusa_heads_with_an_lm_head_each_go_into_the_authors_layout(run, tmp_path, tiny_folder):
    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    MedusaHeads(target, 3, torch.arange(20), own_head="map").save(target, tmp_path / "heads")
    options = ["--model", tiny_folder, "--heads", tmp_path / "heads", "--export", tmp_path / "x"]
    code, _, _ = run("handover", "--engine", "vllm", "--drafter", "medusa", *options)
    assert code == 0 and (tmp_path / "x" / "medusa" / "medusa_lm_head.safetensors").is_file()


def test_our_dflash_is_refused_and_other_kinds_are_named(run, tmp_path, tiny_folder):
    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    MedusaHeads(target, 3).save(target, tmp_path / "medusa")
    shipped = ["--model", "micro", "--heads", "micro-dflash", "--export", tmp_path / "x"]
    code, _, err = run("handover", "--engine", "vllm", "--drafter", "dflash", *shipped)
    assert code == 2 and "--public" in err and not (tmp_path / "x" / "dflash").exists()
    options = ["--model", tiny_folder, "--heads", tmp_path / "medusa", "--export", tmp_path / "x"]
    code, _, err = run("handover", "--engine", "vllm", "--drafter", "eagle", *options)
    assert code == 2 and "--drafter medusa" in err


def test_a_reduced_vocabulary_is_padded(make_model, tmp_path):
    """Every other token gets the mean of the logits that there are, which is never the largest."""
    model = make_model(head_vocab=32, dtype=torch.float32)
    whole = ms.load(export.export_model(model, tmp_path), device="cpu", dtype=torch.float32)
    assert whole.config.head_vocab is None and whole.transformer.lm_head.weight.shape == (64, 32)
    tokens, ids = torch.randint(64, (3, 20), generator=torch.Generator().manual_seed(0)), model.transformer.head_ids
    ours, theirs = model.transformer(tokens).logits, whole.transformer(tokens).logits  # [3, 20, 64]
    others = [i for i in range(64) if i not in ids.tolist()]
    assert torch.allclose(theirs[..., ids], ours[..., ids], atol=1e-5)
    assert torch.allclose(theirs[..., others], ours[..., ids].mean(-1, keepdim=True).expand(-1, -1, 32), atol=1e-5)
    assert torch.equal(theirs.argmax(-1), ours.argmax(-1))


# ---------------------------------------------------------------- what the engines will read


@pytest.mark.parametrize("head_ids", [None, [1, 5, 9, 40, 63]])
def test_exported_medusa_heads_compute_the_same_by_vllms_formula(make_model, tmp_path, head_ids):
    target, generator = make_model(dtype=torch.float32), torch.Generator().manual_seed(0)
    heads = MedusaHeads(target, 3, None if head_ids is None else torch.tensor(head_ids))
    with torch.no_grad():
        for part in (heads.weight, heads.bias):
            part.copy_(0.3 * torch.randn(part.shape, generator=generator))
    export.export_medusa(heads, target, tmp_path)
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "medusa" and config["num_heads"] == 3 and config["vocab_size"] == 64
    assert config["truncated_vocab_size"] == (64 if head_ids is None else 5) and config["medusa_fc_bias"]
    h = torch.randn(4, 32, generator=generator)
    for i in range(3):
        x = h + F.silu(F.linear(h, tensors[f"blocks.{i}.layers.0.weight"], tensors[f"blocks.{i}.layers.0.bias"]))
        assert torch.allclose(x @ tensors["lm_head.weight"].T, heads(h)[:, i], atol=1e-6)
    assert ("token_map" in tensors) == (head_ids is not None)
    assert head_ids is None or tensors["token_map"].tolist() == head_ids


COUNT_PASSES = """
import transformers.models.llama.modeling_llama as llama

passes, forward = [], llama.LlamaForCausalLM.forward

def counted(self, *args, **kwargs):
    passes.append(self.config.num_hidden_layers)
    return forward(self, *args, **kwargs)

llama.LlamaForCausalLM.forward = counted
"""


@pytest.mark.slow
def test_the_transformers_script_writes_minispecs_tokens(run, tmp_path):
    """Both scripts in one process: transformers takes seconds to import."""
    prompt, code = "Once upon a time, there was a little", COUNT_PASSES
    for drafter in ("model", "ngram"):
        options = ["--drafter", drafter, "--model", "micro", "--draft", "micro-draft", "--export", tmp_path]
        status, script, err = run("handover", "--engine", "transformers", *options, "--prompt", prompt, "--tokens", 40)
        assert status == 0, err
        code += f"{script}\nprint('passes', passes.count(6), passes.count(2)); passes.clear()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    target, draft = (ms.load(name, device="cpu") for name in ("micro", "micro-draft"))
    plain = ms.generate(target, prompt, 40)
    assert [json.loads(line) for line in lines if line.startswith("[")] == [plain.tokens, plain.tokens]
    assert plain.text in done.stdout
    ours = ms.speculate(target, prompt, ms.drafters.Model(draft), 4, 40).trace.target_passes
    with_draft, with_ngrams = ([int(n) for n in line.split()[1:]] for line in lines if line.startswith("passes"))
    assert abs(with_draft[0] - ours) <= 1  # its first pass reads the prompt, too
    assert with_draft[1] > 0 == with_ngrams[1] and with_ngrams[0] <= 40


def test_an_eagle_head_in_the_published_form_is_exported(run, tmp_path, tiny_folder):
    """And what was written is read back as it was."""
    from minispec.drafters.eagle import EagleHead, Form

    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    head = EagleHead(target, torch.arange(3, 11), (0, 1, 2), own_head=True, form=Form.eagle3(stream_norm="each"))
    generator = torch.Generator().manual_seed(0)
    for weight in head.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator))
    head.save(target, tmp_path / "heads", bits=None)
    options = ["--engine", "vllm", "--drafter", "eagle", "--model", tiny_folder, "--heads", tmp_path / "heads"]
    assert run("handover", *options)[0] == 2  # ours, so that it has to be exported
    code, out, _ = run("handover", *options, "--export", tmp_path / "x")
    assert code == 0 and str(tmp_path / "x" / "eagle") in out
    again = ms.drafters.Eagle(target, tmp_path / "x" / "eagle").head
    assert again.form == head.form and again.hidden_layers == head.hidden_layers
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in head.state_dict().items())
