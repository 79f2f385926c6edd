"""The same weights in transformers, decoding the same prompts: what minispec's times are compared with.

Each peer is a call that generates so many tokens after a prompt, and the last one serves many requests at once. Those
that cannot be had (transformers is missing, a version does not know an option) are left out, with the reason.
"""

from collections.abc import Callable, Sequence

import torch

from minispec.cli import options
from minispec.load.handle import Model
from minispec.load.hf_config import to_hf

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


# ---- many requests at once ----

SERVERS = {"default": {}, "compiled": {"default_compile_level": 1}, "graphs": {"use_cuda_graph": True}}
PAGE = 256  # tokens, theirs
TRIAL = 64  # tokens at most, for each request of the warm-up
Work = Sequence[tuple[Sequence[int], int]]  # prompts, and how many tokens to write after each


class ContinuousBatching:
    """transformers' own server on the very same tensors, started once and kept running.

    `cache_tokens` is how many tokens its pages hold. No margin of them is kept free and no prefix is shared: there is
    room for everybody, and the next round must read the same prompts again.
    """

    def __init__(self, theirs, options: dict, max_num_seqs: int, cache_tokens: int, token_budget: int):
        from transformers import ContinuousBatchingConfig, GenerationConfig

        options = options | {
            "page_size": PAGE,
            "num_blocks": -(-cache_tokens // PAGE),
            "max_batch_tokens": token_budget,
            "max_requests_per_batch": max_num_seqs,
            "allow_block_sharing": False,
            "safety_margin": 0.0,
        }
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1)  # −1 is no token: every run generates as much
        config = ContinuousBatchingConfig(**options)
        self.manager = theirs.init_continuous_batching(generation_config=greedy, continuous_batching_config=config)
        self.attention = theirs.config._attn_implementation
        self.manager.warmup()
        self.manager.start()

    def serve(self, work: Work) -> list[list[int]]:
        """The texts, in the order of the requests."""
        ids = [self.manager.add_request(list(prompt), max_new_tokens=n, eos_token_id=-1) for prompt, n in work]
        texts: dict[str, list[int]] = {}
        while len(texts) < len(ids):
            out = self.manager.get_result(timeout=1)
            if out is not None and out.error:
                raise RuntimeError(f"continuous batching: {out.error}")
            if out is not None and out.is_finished():
                texts[out.request_id] = out.generated_tokens
            elif out is None and not self.manager.is_running():
                raise RuntimeError("continuous batching has stopped before its last request")
        return [texts[id] for id in ids]

    def facts(self) -> dict:
        """What it really runs with: options that were left to it are decided by now."""
        import transformers

        config = self.manager.continuous_batching_config
        return {
            "transformers": transformers.__version__,
            "attention": self.attention,
            "cuda_graphs": list(config.cuda_graph_booleans),  # passes with prompts, passes that only decode
            "compiled": config.varlen_compile_config is not None,
            "max_num_seqs": config.max_requests_per_batch,
        }

    def close(self) -> None:
        self.manager.stop(block=True, timeout=60)


def continuous_batching(
    names: Sequence[str], target: Model, work: Work, max_num_seqs: int, cache_tokens: int, token_budget: int
) -> tuple[ContinuousBatching | None, dict[str, str]]:
    """The first of SERVERS that works here, running and warm, and why not those before it."""
    skipped, some = {}, [(prompt, min(new, TRIAL)) for prompt, new in work[:max_num_seqs]]
    for name in names:
        try:
            theirs = as_transformers(target)
            server = ContinuousBatching(theirs, SERVERS[name], max_num_seqs, cache_tokens, token_budget)
            try:
                server.serve(some)  # compiles and captures
            except BaseException:
                server.close()  # or its thread would keep the program from ending
                raise
            return server, skipped
        except Exception as error:  # not installed, or another version than these lines were written for
            skipped[f"transformers {name}"] = reason(error)
    return None, skipped
