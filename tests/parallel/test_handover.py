"""What is handed over: option names that exist, folders that others can read, and the same greedy tokens elsewhere."""

import json
import re
import shlex
import subprocess
import sys

import pytest
import torch

import minispec as ms
from minispec.drafters.eagle import Form
from minispec.drafters.medusa import MedusaHeads
from minispec.parallel import handover
from minispec.parallel.handover import ENGINES, Order
from recipes.dflash import head_from

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
        (dict(drafter="model"), "--draft"),
        (dict(drafter="eagle"), "--heads"),
    ):
        with pytest.raises(ValueError, match=re.escape(key)):
            Order(**dict(model=HUB) | arguments)


# ---------------------------------------------------------------- the command line


def test_models_are_named_as_the_engine_finds_them(run, tmp_path):
    code, out, _ = run("handover", "--engine", "vllm", "--drafter", "ngram", "--model", HUB)
    assert code == 0 and f"vllm serve {HUB}" in out and "commit" in out.splitlines()[0]
    code, out, _ = run("handover", "--engine", "sglang", "--drafter", "ngram", "--model", "smollm2")
    assert code == 0 and "HuggingFaceTB/SmolLM2-135M-Instruct" in out
    code, out, err = run("handover", "--engine", "vllm", "--drafter", "ngram", "--model", "micro")
    assert (code, out) == (2, "") and "--export" in err
    code, _, _ = run("handover", "--engine", "sglang", "--drafter", "suffix", "--export", tmp_path / "x")
    assert code == 2 and not (tmp_path / "x").exists()  # nothing is written for an engine that refuses


def test_heads_are_exported_as_each_engine_reads_them(run, tmp_path, tiny_folder):
    """And what an engine would compute wrongly is refused."""
    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    eagle, ids = ms.drafters.EagleHead, torch.arange(8)
    MedusaHeads(target, 3).save(target, tmp_path / "medusa")
    eagle(target, ids).save(target, tmp_path / "ours")
    eagle(target, ids, [1], form=Form.eagle3()).save(target, tmp_path / "eagle3")
    dflash = head_from(target.transformer, ids, mask_token=9)
    dflash.save(target, tmp_path / "dflash")
    for number, (engine, drafter, heads, said) in enumerate(
        (
            ("vllm", "medusa", "medusa", None),  # not written
            ("vllm", "eagle", "eagle3", '"speculators_model_type": "eagle3"'),
            ("vllm", "dflash", "dflash", '"speculators_model_type": "dflash"'),
            ("sglang", "eagle", "eagle3", None),  # in vLLM's layout
            ("vllm", "eagle", "ours", None),  # a path around attention, which it would leave out
            ("vllm", "eagle", "medusa", None),
        )
    ):
        options = ["--engine", engine, "--drafter", drafter, "--model", tiny_folder, "--heads", tmp_path / heads]
        code, _, err = run("handover", *options)
        assert code == 2 and ("--export" in err or said is None)  # ours, so that it has to be exported
        folder = tmp_path / str(number)
        code, out, err = run("handover", *options, "--export", folder)
        assert code == (0 if said else 2), err
        assert said is None or (said in (folder / drafter / "config.json").read_text() and str(folder / drafter) in out)
    for drafter in ("dflash", "medusa"):
        other = ["--drafter", drafter, "--model", "micro", "--heads", "micro-dspark"]
        code, _, err = run("handover", "--engine", "vllm", *other)
        assert code == 2 and "dspark" in err and "take eagle or dflash" in err
    shipped = ["--model", "micro", "--heads", "micro-dflash", "--export", tmp_path / "x"]
    code, _, err = run("handover", "--engine", "vllm", "--drafter", "dflash", *shipped)
    assert code == 2 and "--public" in err and not (tmp_path / "x" / "dflash").exists()


def test_a_reduced_vocabulary_is_padded(make_model, tmp_path):
    """Every other token gets the mean of the logits that there are, which is never the largest."""
    model = make_model(head_vocab=32, dtype=torch.float32)
    whole = ms.load(handover.export_model(model, tmp_path), device="cpu", dtype=torch.float32)
    assert whole.config.head_vocab is None and whole.transformer.lm_head.weight.shape == (64, 32)
    tokens, ids = torch.randint(64, (3, 20), generator=torch.Generator().manual_seed(0)), model.transformer.head_ids
    ours, theirs = model.transformer(tokens).logits, whole.transformer(tokens).logits  # [3, 20, 64]
    others = [i for i in range(64) if i not in ids.tolist()]
    assert torch.allclose(theirs[..., ids], ours[..., ids], atol=1e-5)
    assert torch.allclose(theirs[..., others], ours[..., ids].mean(-1, keepdim=True).expand(-1, -1, 32), atol=1e-5)
    assert torch.equal(theirs.argmax(-1), ours.argmax(-1))


COUNT_PASSES = """
import transformers.models.llama.modeling_llama as llama

passes, forward = [], llama.LlamaForCausalLM.forward

def counted(self, *args, **kwargs):
    passes.append(self.config.num_hidden_layers)
    return forward(self, *args, **kwargs)

llama.LlamaForCausalLM.forward = counted
"""


@pytest.mark.nightly
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
