"""Hand over to a real engine: its command or script for the speculation you know from here, in its own words.

Users who outgrow one machine should not scale minispec up. vLLM, SGLang and transformers speak of the same things under
other names (docs/handover.md has the dictionary). The option names were read in the sources named in READ; engines
rename options, so compare with the version you install.

Engines cannot read minispec's own storage (int8 with scales, borrowed embeddings, heads). `--export FOLDER` writes what
they can:

    a model       Hugging Face's layout; a draft model that scores a part of the vocabulary gets a full-size head
    EAGLE         as speculators stores EAGLE-3, which vLLM reads, if it was trained in the published form
    DFlash        the same
"""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..drafters.dflash import DFlashHead
from ..drafters.eagle import EagleHead
from ..load.fetch import SMOLLM2_REPO
from ..load.folder import load, read_json, save_folder
from ..load.handle import Model
from ..load.heads_dflash import write_dflash
from ..load.heads_eagle import write_eagle
from ..load.registry import HUB_ID, KNOWN, locate
from ..model import Transformer
from ..require import require, require_counts

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
        require(self.drafter in DRAFTERS, f"one of {', '.join(DRAFTERS)}", drafter=self.drafter)
        require_counts(k=self.k, n_min=self.n_min, ranks=self.ranks, tokens=self.tokens)
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
    whole = {"num-draft-tokens": order.k + 1}  # a chain of k draft tokens after the last token
    chain = {"num-steps": order.k, "eagle-topk": 1} | whole
    algorithms = {
        "ngram": ("NGRAM", {"ngram-max-bfs-breadth": 1, "ngram-max-trie-depth": order.n_max + order.k} | whole),
        "model": ("STANDALONE", {"draft-model-path": order.draft} | chain),
        "eagle": ("EAGLE3", {"draft-model-path": order.heads} | chain),
        "dflash": ("DFLASH", {"draft-model-path": order.heads, "dflash-block-size": order.k + 1}),
    }
    if order.drafter not in algorithms:
        nearest = "ngram, whose trie of past text is the nearest" if order.drafter == "suffix" else "eagle"
        raise ValueError(f"drafter={order.drafter!r}: SGLang has no such algorithm; take {nearest}")
    name, options = algorithms[order.drafter]
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
    return " ".join(f"\\\n    {word}" if word.startswith("--") else shlex.quote(word) for word in command)


# ---- what engines can read ----------------------------------------------------------------------------------------


def plain_name(name: str) -> str | None:
    """How an engine finds this model as it is; None where it could not read it."""
    if name == "smollm2":
        return SMOLLM2_REPO
    if name in KNOWN:
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name if HUB_ID.fullmatch(name) else str(locate(name))  # which says what would do
    config = read_json(folder / "config.json")
    ours = config.get("embeddings_from") or config.get("head_vocab") or "architectures" not in config
    return None if ours else str(folder.resolve())


def export_model(model: Model, folder: str | Path) -> Path:
    """Write a model in plain Hugging Face layout, its weights as they are."""
    save_folder(with_full_head(model), folder, bits=None)
    return Path(folder).resolve()


@torch.no_grad()
def with_full_head(model: Model) -> Model:
    """A draft model that scores v of V tokens as one that scores all: engines have no reduced heads for draft models.

    A LM head has no way to say "never". So every other token gets the mean of the v rows: its logit is the mean of the
    v logits, which is never above the largest of them. The likeliest token is the same as before. Sampled drafts may
    be one of the padding; they are then rejected, or accepted, by the usual rule.
    """
    c, old = model.config, model.transformer
    if c.head_vocab is None:
        return model
    with torch.device("meta"):
        new = Transformer(replace(c, head_vocab=None, tie_embeddings=False))
    state = old.state_dict()
    ids, rows = state.pop("head_ids"), state["lm_head.weight"]  # [v], [v, d]
    state["lm_head.weight"] = rows.mean(0).repeat(c.vocab_size, 1).index_copy_(0, ids, rows)
    new.load_state_dict(state, assign=True)
    return model.around(new.requires_grad_(False).eval())


def readable(name: str, role: str, export: Path | None) -> str:
    """The model as the engine will find it, written to `export` first where it has to be."""
    if plain := plain_name(name):
        return plain
    return str(export_model(load(name, device="cpu"), export_folder(export, f"{role}={name!r} is") / role))


def export_folder(export: Path | None, what: str) -> Path:
    if export is None:
        raise ValueError(f"{what} stored in a way of minispec's own: add --export FOLDER for a copy that engines read")
    return export


def our_heads(heads: str, drafter: str, model: str, k: int, export: Path | None, engine: str) -> tuple[str, int]:
    """Heads as this engine will find them, and the draft length; somebody else's stay where they are."""
    source = locate(heads) if heads in KNOWN else Path(heads)
    kind = read_json(file).get("kind") if (file := source / "config.json").is_file() else None
    if kind is None:
        return heads, k
    if kind != drafter and kind in HEADS:
        raise ValueError(f"heads={heads!r} are for {kind}, and drafter={drafter!r}: give --drafter {kind}")
    if kind not in ("eagle", "dflash"):
        raise ValueError(f"heads={heads!r}: heads for {kind} are not handed over here; take eagle or dflash")
    if engine == "sglang":
        raise ValueError(f"heads={heads!r}: SGLang reads the layouts of their authors, and ours is vLLM's; take vllm")
    folder = export_folder(export, f"heads={heads!r} are") / kind
    target, verifier = load(model, device="cpu"), plain_name(model) or str((export / "model").resolve())
    head = {"eagle": EagleHead, "dflash": DFlashHead}[kind].load(target, source)
    if kind == "dflash":
        return str(write_dflash(head, target, folder, verifier)), min(k, head.block - 1)
    return str(write_eagle(head, target, folder, verifier, k)), k


def hand_over(engine: str, order: Order, export: Path | None = None) -> str:
    """What to run; what the engine cannot read as it is goes to the folder `export` first."""
    ENGINES[engine](order)  # refuses what this engine lacks, before anything is written
    if order.drafter in HEADS:
        order.heads, order.k = our_heads(order.heads, order.drafter, order.model, order.k, export, engine)
    if order.drafter == "model":
        order.draft = readable(order.draft, "draft", export)
    order.model = readable(order.model, "model", export)
    return f"# option names as in {READ[engine]}\n{ENGINES[engine](order)}"
