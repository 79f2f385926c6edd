"""Hand over to a real engine: its command or script for the speculation you know from here, in its own words.

Users who outgrow one machine should not scale minispec up. vLLM, SGLang and transformers speak of the same things under
other names (docs/handover.md has the dictionary). The option names were read in the sources named in READ; engines
rename options, so compare with the version you install.

Engines cannot read minispec's own storage (int8 with scales, borrowed embeddings, heads). `--export FOLDER` writes what
they can: a model in plain Hugging Face layout, Medusa heads as vLLM loads them, and EAGLE heads in the published form
as speculators stores them. The EAGLE heads that ship have no counterpart: the token has a second way into the layer.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from ..drafters.eagle_head import EagleHead, Form
from ..drafters.medusa import MedusaHeads
from ..drafters.write_heads import ARCHITECTURES, write_eagle
from ..files import options
from ..files.fetch import SMOLLM2_REPO
from ..files.folder import load, read_json, save_folder
from ..files.handle import Model
from ..files.registry import KNOWN, locate
from ..files.write import in_place_of, write_whole

READ = {
    "vllm": "vllm/config/speculative.py of vllm-project/vllm, commit 002e77c1f0ef",
    "sglang": "python/sglang/srt/server_args.py of sgl-project/sglang, commit 001067fffe33",
    "transformers": "transformers 5.22.2",
}
DRAFTERS = ("ngram", "suffix", "model", "medusa", "eagle")


@dataclass
class Order:
    """What to speculate with. Models and heads are named as the engine will find them."""

    drafter: str
    model: str
    draft: str | None = None  # of "model"
    heads: str | None = None  # of "medusa" and "eagle"
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
        if self.drafter in ("medusa", "eagle") and not self.heads:
            raise ValueError(f"drafter={self.drafter!r} needs trained heads: give --heads FOLDER")


# ---- the engines -------------------------------------------------------------------------------------------------


def vllm(order: Order) -> str:
    config = {
        "ngram": {"method": "ngram", "prompt_lookup_max": order.n_max, "prompt_lookup_min": order.n_min},
        "suffix": {"method": "suffix"},  # needs arctic-inference beside vLLM
        "model": {"method": "draft_model", "model": order.draft},
        "medusa": {"method": "medusa", "model": order.heads},
        "eagle": {"method": "eagle3", "model": order.heads},
    }[order.drafter] | {"num_speculative_tokens": order.k}
    if order.drafter in ("model", "eagle"):
        config["draft_sample_method"] = "probabilistic"  # draws its drafts, as here; "greedy" is vLLM's default
    command = ["vllm", "serve", order.model, "--speculative-config", json.dumps(config)]
    if order.ranks > 1:
        command += ["--tensor-parallel-size", str(order.ranks)]
    return shell(command)


def sglang(order: Order) -> str:
    k, chain = str(order.k), str(order.k + 1)  # a chain of k drafts behind the last token
    options = {
        "ngram": ["NGRAM", "--speculative-num-draft-tokens", chain, "--speculative-ngram-max-bfs-breadth", "1",
                  "--speculative-ngram-max-trie-depth", str(order.n_max + order.k)],
        "model": ["STANDALONE", "--speculative-draft-model-path", order.draft],
        "eagle": ["EAGLE3", "--speculative-draft-model-path", order.heads],
    }.get(order.drafter)  # fmt: skip
    if options is None:
        nearest = "ngram, whose trie of past text is the nearest" if order.drafter == "suffix" else "eagle"
        raise ValueError(f"drafter={order.drafter!r}: SGLang has no such algorithm; take {nearest}")
    if order.drafter != "ngram":
        options += ["--speculative-num-steps", k, "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens",
                    chain, "--speculative-use-rejection-sampling"]  # fmt: skip
    command = ["python", "-m", "sglang.launch_server", "--model-path", order.model, "--speculative-algorithm", *options]
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


# ---- what engines can read ---------------------------------------------------------------------------------------


def plain_name(name: str) -> str | None:
    """How an engine finds this model as it is; None where it could not read it."""
    if name == "smollm2":
        return SMOLLM2_REPO
    if name in KNOWN:
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name  # a hub id
    config = read_json(folder / "config.json")
    ours = config.get("embeddings_from") or config.get("head_vocab") or "architectures" not in config
    return None if ours else str(folder.resolve())


def export_model(model: Model, folder: str | Path) -> Path:
    """Write a model in plain Hugging Face layout, float32, with what engines ask for beyond what minispec needs."""
    folder = Path(folder)
    if model.config.head_vocab is not None:
        raise ValueError(
            f"{model.name!r} scores {model.config.head_vocab} of its {model.config.vocab_size} tokens, which no engine "
            "has for a draft model: train one with the whole vocabulary"
        )
    save_folder(model, folder, bits=None)
    config = read_json(folder / "config.json")
    config |= {"architectures": [ARCHITECTURES[config["model_type"]]],
               "dtype": str(model.dtype).removeprefix("torch.")}  # fmt: skip
    write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
    if model.tokenizer is not None:
        file = folder / "tokenizer_config.json"
        settings = read_json(file) if file.is_file() else {}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        write_whole(file, json.dumps(settings) + "\n")
    return folder.resolve()


def export_medusa(heads: MedusaHeads, target: Model, folder: str | Path) -> Path:
    """Write Medusa heads as vLLM's MedusaModel loads them.

    Block i is x + SiLU(W x + b), which is our head i + 1; one LM head serves all of them. A reduced vocabulary is
    vLLM's token_map. vLLM drafts the best token of each head, a chain; the tree stays here.
    """
    folder = Path(folder)
    d, V = target.config.hidden_size, target.config.vocab_size
    tensors = {"lm_head.weight": heads.head}
    for i, (weight, bias) in enumerate(zip(heads.weight.split(d), heads.bias.split(d), strict=True)):
        tensors |= {f"blocks.{i}.layers.0.weight": weight, f"blocks.{i}.layers.0.bias": bias}
    if heads.head_ids is not None:
        tensors["token_map"] = heads.head_ids
    with in_place_of(folder / "model.safetensors") as file:
        save_file({key: value.detach().cpu().clone() for key, value in tensors.items()}, file, {"format": "pt"})
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": d,
        "vocab_size": V,
        "truncated_vocab_size": len(heads.head),
        "num_heads": heads.count,
        "num_hidden_layers": 1,
        "medusa_fc_bias": True,
        "original_lm_head": True,
        "dtype": str(heads.weight.dtype).removeprefix("torch."),
    }
    write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
    return folder.resolve()


# ---- the command -------------------------------------------------------------------------------------------------


def add_arguments(parser) -> None:
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--drafter", choices=DRAFTERS, required=True)
    options.add_model(parser)
    options.add_draft(parser, "the draft model of --drafter model")
    parser.add_argument("--heads", metavar="FOLDER", help="the heads of --drafter medusa or eagle: a folder or a name")
    options.add_draft_length(parser, auto=False)
    parser.add_argument("--n-max", type=options.count, default=3, metavar="N", help="of ngram (default: %(default)s)")
    parser.add_argument("--n-min", type=options.count, default=1, metavar="N", help="of ngram (default: %(default)s)")
    parser.add_argument(
        "--ranks", type=options.count, default=1, metavar="N", help="GPUs to share the target (default: 1)"
    )
    options.add_prompt(parser, "of the script")
    options.add_tokens(parser, 64, "of the script")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write what the engine cannot read as it is")
    parser.set_defaults(run=run)


def run(args) -> None:
    order = Order(args.drafter, args.model, args.draft, args.heads, args.k, args.n_max, args.n_min, args.ranks,
                  args.prompt, args.tokens)  # fmt: skip
    ENGINES[args.engine](order)  # refuses what this engine lacks, before anything is written
    if order.drafter == "medusa":
        order.heads, order.k = our_medusa(order, args.export)
    elif order.drafter == "eagle":
        order.heads = our_eagle(order, args.export)
    if order.drafter == "model":
        order.draft = readable(order.draft, "draft", args.export)
    order.model = readable(order.model, "model", args.export)
    print(f"# option names as in {READ[args.engine]}\n{ENGINES[args.engine](order)}")


def readable(name: str, role: str, export: Path | None) -> str:
    """The model as the engine will find it, written to `export` first where it has to be."""
    if plain := plain_name(name):
        return plain
    if export is None:
        raise ValueError(f"{role}={name!r} is stored in a way of minispec's own: add --export FOLDER to write a copy "
                         "that engines can read")  # fmt: skip
    return str(export_model(load(name, device="cpu"), export / role))


def kind_of_heads(name: str) -> tuple[str, str | None]:
    """Where heads are, and what of ours they are: "medusa", "eagle", …; None for somebody else's."""
    folder = locate(name) if name in KNOWN else Path(name)
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return str(folder), config.get("kind")


def our_medusa(order: Order, export: Path | None) -> tuple[str, int]:
    """Heads in vLLM's layout, and how many: vLLM drafts with all of them."""
    folder, kind = kind_of_heads(order.heads)
    if kind != "medusa":
        return order.heads, order.k
    if export is None:
        raise ValueError(f"heads={order.heads!r} are stored in a way of minispec's own: add --export FOLDER to write "
                         "them as vLLM reads them")  # fmt: skip
    target = load(order.model, device="cpu")
    heads = MedusaHeads.load(target, folder)
    return str(export_medusa(heads, target, export / "medusa")), heads.count


def our_eagle(order: Order, export: Path | None) -> str:
    """A head as speculators stores it, which vLLM reads; somebody else's stays where it is."""
    folder, kind = kind_of_heads(order.heads)
    if kind != "eagle":
        return order.heads
    if not Form(**read_json(Path(folder) / "config.json").get("form", {})).public:
        raise ValueError(
            f"heads={order.heads!r} were trained by minispec with a second way for the token, which vLLM does not "
            "compute: train one with vllm-project/speculators or SpecForge and give that"
        )
    if export is None:
        raise ValueError(f"heads={order.heads!r} are stored in a way of minispec's own: add --export FOLDER to write "
                         "them as speculators and vLLM read them")  # fmt: skip
    target = load(order.model, device="cpu")
    verifier = plain_name(order.model) or str((export / "model").resolve())
    return str(write_eagle(EagleHead.load(target, folder), target, export / "eagle", verifier, order.k))
