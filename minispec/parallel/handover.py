"""Hand over to a real engine: its command or script for the speculation you know from here, in its own words.

Users who outgrow one machine should not scale minispec up. vLLM, SGLang and transformers speak of the same things under
other names (docs/handover.md has the dictionary). The option names were read in the sources named in READ; engines
rename options, so compare with the version you install.

Engines cannot read minispec's own storage (int8 with scales, borrowed embeddings, heads). `--export FOLDER` writes what
they can (export.py).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .export import our_heads, readable

READ = {
    "vllm": "vllm/config/speculative.py of vllm-project/vllm, commit a014e35f38c8",
    "sglang": "python/sglang/srt/server_args.py of sgl-project/sglang, commit cce0a1244b5a",
    "transformers": "transformers 5.22.2",
}
HEADS = ("medusa", "eagle", "dflash")
DRAFTERS = ("ngram", "suffix", "model", *HEADS)


@dataclass
class Order:
    """What to speculate with. Models and heads are named as the engine will find them."""

    drafter: str
    model: str
    draft: str | None = None  # of "model"
    heads: str | None = None  # of "medusa", "eagle" and "dflash"
    k: int = 4
    n_max: int = 3  # of "ngram": the longest and the shortest suffix to look up
    n_min: int = 1
    ranks: int = 1
    prompt: str = "Once upon a time"
    tokens: int = 64

    def __post_init__(self):
        if self.drafter not in DRAFTERS:
            raise ValueError(f"drafter={self.drafter!r}: give one of {', '.join(DRAFTERS)}")
        for name in ("k", "n_min", "ranks", "tokens"):
            if not (isinstance(value := getattr(self, name), int) and value >= 1):
                raise ValueError(f"{name}={value!r}: give a whole number ≥ 1")
        if self.n_max < self.n_min:
            raise ValueError(f"n_max={self.n_max}, n_min={self.n_min}: give n_max ≥ n_min")
        if self.drafter == "model" and not self.draft:
            raise ValueError("drafter='model' needs a draft: give --draft MODEL")
        if self.drafter in HEADS and not self.heads:
            raise ValueError(f"drafter={self.drafter!r} needs trained heads: give --heads FOLDER")


# ---- the engines -------------------------------------------------------------------------------------------------


def vllm(order: Order) -> str:
    config = {
        "ngram": {"method": "ngram", "prompt_lookup_max": order.n_max, "prompt_lookup_min": order.n_min},
        "suffix": {"method": "suffix"},  # needs arctic-inference beside vLLM
        "model": {"method": "draft_model", "model": order.draft},
        "medusa": {"method": "medusa", "model": order.heads},
        "eagle": {"method": "eagle3", "model": order.heads},
        "dflash": {"method": "dflash", "model": order.heads},
    }[order.drafter] | {"num_speculative_tokens": order.k}
    if order.drafter in ("model", "eagle"):
        config["draft_sample_method"] = "probabilistic"  # draws its drafts, as here; "greedy" is vLLM's default
    command = ["vllm", "serve", order.model, "--speculative-config", json.dumps(config)]
    if order.ranks > 1:
        command += ["--tensor-parallel-size", str(order.ranks)]
    return shell(command)


def sglang(order: Order) -> str:
    chain = {"num-steps": order.k, "eagle-topk": 1}
    options = {
        "ngram": {"ngram-max-bfs-breadth": 1, "ngram-max-trie-depth": order.n_max + order.k},
        "model": {"draft-model-path": order.draft} | chain,
        "eagle": {"draft-model-path": order.heads} | chain,
        "dflash": {"draft-model-path": order.heads, "dflash-block-size": order.k + 1},
    }.get(order.drafter)
    if options is None:
        nearest = "ngram, whose trie of past text is the nearest" if order.drafter == "suffix" else "eagle"
        raise ValueError(f"drafter={order.drafter!r}: SGLang has no such algorithm; take {nearest}")
    name = {"ngram": "NGRAM", "model": "STANDALONE", "eagle": "EAGLE3", "dflash": "DFLASH"}[order.drafter]
    if order.drafter != "dflash":
        options["num-draft-tokens"] = order.k + 1  # a chain of k draft tokens after the last token
    command = ["python", "-m", "sglang.launch_server", "--model-path", order.model, "--speculative-algorithm", name]
    command += [word for key, value in options.items() for word in (f"--speculative-{key}", str(value))]
    if order.drafter in ("model", "eagle"):
        command.append("--speculative-use-rejection-sampling")
    if order.ranks > 1:
        command += ["--tp-size", str(order.ranks)]
    return shell(command)


SCRIPT = '''\
"""Greedy speculative decoding in transformers: the new tokens as JSON, then the text."""

import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({model!r})
target = AutoModelForCausalLM.from_pretrained({model!r}, dtype=torch.float32)
{setup}prompt = tokenizer({prompt!r}, return_tensors="pt", return_token_type_ids=False)
out = target.generate(**prompt, max_new_tokens={tokens}, do_sample=False, {options})
new = out[0, prompt["input_ids"].shape[1] :].tolist()
print(json.dumps(new))
print(tokenizer.decode(new, skip_special_tokens=True))
'''


def transformers(order: Order) -> str:
    if order.ranks > 1:
        raise ValueError(f"ranks={order.ranks}: transformers cannot speculate on several devices; take vllm or sglang")
    if order.drafter == "ngram":  # tries suffixes of this length and all shorter ones: n_min is 1 there
        setup, options = "", f"prompt_lookup_num_tokens={order.k}, max_matching_ngram_size={order.n_max}"
    elif order.drafter == "model":
        setup = (
            f"draft = AutoModelForCausalLM.from_pretrained({order.draft!r}, dtype=torch.float32)\n"
            f"draft.generation_config.num_assistant_tokens = {order.k}\n"
            'draft.generation_config.num_assistant_tokens_schedule = "constant"  # always k …\n'
            "draft.generation_config.assistant_confidence_threshold = 0.0  # … whatever it thinks of them\n"
        )
        options = "assistant_model=draft"
    else:
        raise ValueError(f"drafter={order.drafter!r}: transformers has no such assistant; take ngram or model")
    return SCRIPT.format(model=order.model, prompt=order.prompt, tokens=order.tokens, setup=setup, options=options)


ENGINES: dict[str, Callable[[Order], str]] = {"vllm": vllm, "sglang": sglang, "transformers": transformers}


def shell(command: list[str]) -> str:
    """A command with an option a line, quoted for a shell."""
    lines = [""]
    for word in command:
        if word.startswith("--"):
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n".join([lines[0].lstrip(), *lines[1:]])


def hand_over(engine: str, order: Order, export: Path | None = None) -> str:
    """What to run; what the engine cannot read as it is goes to the folder `export` first."""
    ENGINES[engine](order)  # refuses what this engine lacks, before anything is written
    if order.drafter in HEADS:
        order.heads, order.k = our_heads(order.heads, order.drafter, order.model, order.k, export, engine)
    if order.drafter == "model":
        order.draft = readable(order.draft, "draft", export)
    order.model = readable(order.model, "model", export)
    return f"# option names as in {READ[engine]}\n{ENGINES[engine](order)}"
