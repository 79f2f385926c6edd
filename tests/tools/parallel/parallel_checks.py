"""What the ranks of test_parallel.py do. They are processes of their own, so this has to be importable."""

import os
import signal

import torch
import torch.distributed as dist
from tiny_models import random_model

import minispec as ms
from minispec_tools.parallel import tensor as parallel

PROMPT = [5, 9, 2, 41, 7]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
FOUR_HEADS = dict(num_heads=8, num_kv_heads=4, head_dim=8)  # so that four ranks can share them
KINDS = {
    "llama": {},
    "tied": dict(tie_embeddings=True),
    "qwen2": dict(qkv_bias=True),
    "qwen3": dict(qk_norm=True),
    "all biases": dict(qkv_bias=True, out_bias=True, mlp_bias=True),
    "fewer tokens": dict(head_vocab=32),
}


def facts_of_a_rank() -> dict:
    """Whatever the tests ask of a group of ranks."""
    facts = {"differences": {}, "sizes": {}}
    for kind, overrides in KINDS.items():
        whole = random_model(dtype=torch.float32, **FOUR_HEADS, **overrides)
        share = parallel.parallelize(whole)
        facts["differences"][kind] = difference(whole, share)
        facts["sizes"][kind] = whole.num_parameters, share.num_parameters

    target, draft = random_model(**FOUR_HEADS), random_model(num_layers=1, **FOUR_HEADS)  # float64: no close calls
    target_share, draft_share = parallel.parallelize(target), parallel.parallelize(draft)
    facts["texts"] = {"whole": texts(target, draft, target), "shared": texts(target_share, draft_share, target)}
    memory = [
        sum(m.nbytes for m in (cache.keys, cache.values))
        for cache in (model.transformer.new_cache(2, 10) for model in (target, target_share))
    ]
    facts["memory"] = memory
    facts["refusals"] = [
        refusal(lambda: ms.generate(target_share, PROMPT, 32, temperature=1.0)),  # a die for each rank
        refusal(lambda: parallel.parallelize(random_model(num_heads=9, num_kv_heads=3))),
    ]
    return facts


def difference(whole: ms.Model, share: ms.Model) -> float:
    """The largest difference of any logit, with a cache and without."""
    worst = 0.0
    for caches in ((None, None), (whole.transformer.new_cache(2, 12), share.transformer.new_cache(2, 12))):
        with torch.inference_mode():
            for tokens in (TOKENS, TOKENS[:, :1]):
                want, got = (m.transformer(tokens, c).logits for m, c in zip((whole, share), caches, strict=True))
                worst = max(worst, float((got - want).nan_to_num(0, 0, 0).abs().max()))
    return worst


def texts(target: ms.Model, draft: ms.Model, whole: ms.Model) -> dict:
    """Everything that the ranks should write as one process does."""
    drafter, sampled = ms.drafters.Model(draft), dict(temperature=0.9, seed=11)
    heads = ms.drafters.MedusaHeads(whole)
    speculative = ms.speculate(target, PROMPT, drafter, 4, 16)
    return {
        "greedy": ms.generate(target, PROMPT, 16).tokens,
        "sampled": ms.generate(target, PROMPT, 16, **sampled).tokens,
        "batch": [out.tokens for out in ms.generate(target, [PROMPT, PROMPT[:2]], 8, **sampled)],
        "speculative": speculative.tokens,
        "speculative, sampled": ms.speculate(target, PROMPT, drafter, 3, 16, **sampled).tokens,
        "n-grams": ms.speculate(target, PROMPT, ms.drafters.NGram(), 4, 16).tokens,
        "medusa": ms.speculate(target, PROMPT, ms.drafters.Medusa(target, heads, nodes=6), 4, 16).tokens,
        "accepted": speculative.trace.acceptance_rate,
    }


def refusal(act) -> str:
    try:
        act()
    except ValueError as error:
        return str(error)
    return ""


def rank_one_dies() -> None:
    """In the middle of an output."""
    share, passes = parallel.parallelize(random_model(**FOUR_HEADS)), []

    def accident(*_):
        passes.append(1)
        if dist.get_rank() == 1 and len(passes) == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    share.transformer.embed_tokens.register_forward_pre_hook(accident)
    ms.generate(share, PROMPT, 32)
