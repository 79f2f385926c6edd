"""MINISPEC_BATCH_INVARIANT=1 on a GPU: the bits of a token's logits, and outputs in bfloat16, in any company.

    PYTHONPATH=.:tests:tests/gpu python tests/gpu/invariant_checks.py [TARGET DRAFT]

Prints, without the flag and with it: in how many of the passes a token's logits have the bits that they have alone, how
many greedy outputs in bfloat16 are those of plain decoding one prompt at a time, and tokens per second. With the flag
all of the first two must be; what is printed last is its cost.
"""

import json
import os
import sys
import time
from statistics import median

import torch

import minispec as ms

FLAG, COUNT = "MINISPEC_BATCH_INVARIANT", 128
TEXTS = ["Once upon a time", "The capital of France is", "def fibonacci(n):", "Water boils at"]
TEXTS += ["In 1969", "A boy found", "The three primary colours are", "To make bread, you need"]


@torch.inference_mode()
def same_bits(model: ms.Model) -> dict[str, bool]:
    """The last token's logits after 300 others, alone and one at a time, against larger passes and batches."""
    ids = torch.tensor([model.encode(" ".join(TEXTS) * 8)[:301]], device=model.device)
    backend = model.accelerate()

    def last_logits(sizes: list[int], batch: int = 1):
        memory = backend.reserve(512, batch)
        others = torch.randint(0, 1000, (batch, ids.shape[1]), device=model.device)
        others[0] = ids[0]
        first = ids.shape[1] - sum(sizes)
        memory.prefill(others[:, :first], torch.full((batch,), first, device=model.device))
        for part in others[:, first:].split(sizes, 1):
            logits = memory.step(part)
        return logits[0, -1].clone()

    alone = last_logits([1] * 60)
    ways = {
        "five at a time": ([5] * 12, 1),
        "in chunks of 30": ([30, 30], 1),
        "after a prompt of 300": ([1], 1),
        "in a batch of 8": ([1] * 60, 8),
        "five at a time in a batch of 32": ([5] * 12, 32),
        "a prompt of 241 and 60 at once in a batch of 8": ([60], 8),
    }
    return {name: torch.equal(last_logits(*way), alone) for name, way in ways.items()}


def outputs(model: ms.Model, draft: ms.Model, prompts: list[str]) -> dict[str, int]:
    """How many greedy outputs are those of plain decoding, one prompt at a time."""
    params = ms.SamplingParams(max_new_tokens=COUNT)
    plain = [ms.generate(model, text, max_new_tokens=COUNT).tokens for text in prompts]
    chain, ngram = ms.drafters.Model(draft), ms.drafters.NGram()

    def served(drafter=None, **options) -> list[list[int]]:
        engine = ms.Engine(model, drafter, num_blocks=4096, max_num_seqs=len(prompts), **options)
        return [out.tokens for out in engine.generate(prompts, params, progress=False)]

    def speculated(drafter, texts) -> list[list[int]]:
        return [out.tokens for out in ms.speculate(model, texts, drafter, k=4, max_new_tokens=COUNT)]

    ways = {
        "a batch": lambda: [out.tokens for out in ms.generate(model, prompts, max_new_tokens=COUNT)],
        "a draft model, k = 4": lambda: [t for text in prompts for t in speculated(chain, [text])],
        "n-grams, k = 4": lambda: [t for text in prompts for t in speculated(ngram, [text])],
        "a draft model, k = 4, in a batch": lambda: speculated(chain, prompts),
        "an engine": served,
        "an engine, prompts in chunks of at most 48 tokens": lambda: served(max_num_batched_tokens=48),
        "an engine with a draft model, k = 4": lambda: served(chain, k=4),
    }
    return {name: sum(a == b for a, b in zip(way(), plain, strict=True)) for name, way in ways.items()}


def speed(model: ms.Model, prompts: list[str]) -> dict[str, float]:
    """Tokens per second, median of five after two."""
    engine, found = ms.Engine(model, num_blocks=4096, max_num_seqs=16), {}
    params = ms.SamplingParams(max_new_tokens=COUNT, ignore_eos=True)
    ways = {
        "one prompt": lambda: [ms.generate(model, prompts[0], max_new_tokens=COUNT, ignore_eos=True)],
        "an engine, 16 requests": lambda: engine.generate(prompts[:16], params, progress=False),
    }
    for name, way in ways.items():
        times = []
        for _ in range(7):
            torch.cuda.synchronize()
            start = time.perf_counter()
            tokens = sum(len(out.tokens) for out in way())  # on the host: the device is done
            times.append(tokens / (time.perf_counter() - start))
        found[name] = round(median(times[2:]), 1)
    return found


def main(target: str = "micro", draft: str = "micro-draft") -> None:
    prompts, wrong = [f"{text} {i}" if i else text for i in range(4) for text in TEXTS], 0
    print(torch.cuda.get_device_name(), target, draft, f"bfloat16, {len(prompts)} prompts, {COUNT} tokens each")
    for flag in "01":
        os.environ[FLAG] = flag
        model, small = (ms.load(name, device="cuda", dtype=torch.bfloat16) for name in (target, draft))
        bits = same_bits(model)
        print(f"flag {flag}: the bits of decoding alone:", json.dumps(bits), flush=True)
        same = outputs(model, small, prompts)
        print(f"flag {flag}: outputs equal to plain decoding, of {len(prompts)}:", json.dumps(same), flush=True)
        print(f"flag {flag}: tokens per second:", json.dumps(speed(model, prompts)), flush=True)
        wrong += flag == "1" and (not all(bits.values()) or any(n < len(prompts) for n in same.values()))
    sys.exit("FAILED: with the flag something changed" if wrong else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
