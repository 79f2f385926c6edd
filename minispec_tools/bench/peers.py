"""The same weights in transformers, decoding the same prompts: what minispec's times are compared with.

Each peer is a call that generates so many tokens after a prompt. Those that cannot be had (transformers is missing, a
version does not know an option) are left out, with the reason.
"""

from collections.abc import Callable, Sequence

import torch

from minispec.load.hf_config import to_hf
from minispec.load.model import Model

from ..cli import options

PEERS = ("eager", "static", "assisted")


def as_transformers(model: Model):
    """The model as transformers' own class, on the very same tensors."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = to_hf(model.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    tensors = {
        key if key.startswith("lm_head") else f"model.{key}": value
        for key, value in model.transformer.state_dict().items()
    }
    theirs.load_state_dict(tensors, assign=True)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config).to(model.device)  # no weights: not in the dict
    theirs.generation_config.eos_token_id = None  # every run writes as much
    theirs.generation_config.pad_token_id = 0
    return theirs.eval()


def transformers_peers(
    names: Sequence[str],
    target: Model,
    draft: Model,
    prompt: Sequence[int],
    new_tokens: int,
    k: int,
    temperature: float,
    seed: int,
) -> tuple[dict[str, Callable], dict[str, str]]:
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
    ways = {"eager": {}, "assisted": dict(assistant_model=assistant)}
    ways["static"] = dict(cache_implementation="static")  # which compiles the model too, on a GPU
    ids = torch.tensor([list(prompt)], device=target.device)
    sampled = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0)
    sampling = sampled if temperature else dict(do_sample=False)

    length = dict(max_new_tokens=new_tokens, min_new_tokens=new_tokens)

    def run(name: str) -> None:
        torch.manual_seed(seed)  # transformers samples from the global generator
        with torch.inference_mode():
            theirs.generate(ids, attention_mask=torch.ones_like(ids), **length, **sampling, **ways[name])

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
    options.add(parser, "peers", str, default, f"of transformers: {', '.join(PEERS)}", "NAME", nargs="*", choices=PEERS)
