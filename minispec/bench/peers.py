"""The same weights in transformers, decoding the same prompts: what minispec's times are held against.

Each peer is a call that writes so many tokens after a prompt. Who cannot be had (transformers is missing, a version
does not know an option) is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..weights import Model

PEERS = ("eager", "static", "assisted")


def as_transformers(model: Model):
    """The model as transformers' own class, on the very same tensors."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = model.config.to_hf()
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    tensors = {key if key.startswith("lm_head") else f"model.{key}": value
               for key, value in model.transformer.state_dict().items()}  # fmt: skip
    theirs.load_state_dict(tensors, assign=True)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config).to(model.device)  # no weights: not in the dict
    theirs.generation_config.eos_token_id = None  # every run writes as much
    theirs.generation_config.pad_token_id = 0
    return theirs.eval()


def transformers_peers(
    names: Sequence[str], target: Model, draft: Model, prompt: Sequence[int], new_tokens: int, k: int,
    temperature: float, seed: int,
) -> tuple[dict[str, Callable], dict[str, str]]:  # fmt: skip
    """Those of PEERS that work here, each tried once: {name: call}, and why not the others."""
    if not names:
        return {}, {}
    try:
        theirs, assistant = as_transformers(target), as_transformers(draft)
    except Exception as error:  # not installed, or another version than these lines were written for
        return {}, {f"transformers {name}": reason(error) for name in names}
    assistant.generation_config.num_assistant_tokens = k
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0  # a fixed draft length, like ours
    options = {
        "eager": {},
        "static": dict(cache_implementation="static"),  # which compiles the model too, on a GPU
        "assisted": dict(assistant_model=assistant),
    }
    ids = torch.tensor([list(prompt)], device=target.device)
    sampling = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0) if temperature else {}

    def run(name: str, count: int = new_tokens) -> None:
        torch.manual_seed(seed)  # transformers draws from the global generator
        with torch.inference_mode():
            theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count,
                            **{"do_sample": False} | sampling | options[name])  # fmt: skip

    calls, skipped = {}, {}
    for name in names:
        try:
            run(name)
            calls[f"transformers {name}"] = lambda name=name: run(name)
        except Exception as error:
            skipped[f"transformers {name}"] = reason(error)
    return calls, skipped


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def add_arguments(parser, default: Sequence[str]) -> None:
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(default), metavar="NAME",
                        help=f"of transformers: {', '.join(PEERS)} (default: {' '.join(default)})")  # fmt: skip
