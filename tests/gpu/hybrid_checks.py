"""Hybrid models on a GPU: no pass of theirs is captured, and greedy outputs are those of a CPU.

PYTHONPATH=.:tests python3 tests/gpu/hybrid_checks.py [cpu]
"""

import sys
import tempfile

import torch
from tiny_models import random_model

import minispec as ms
from minispec.load.folder import save_folder
from minispec.recurrent import DeltaRule

PROMPTS, N = [[1, 2, 3, 4, 5], [7, 8], [9, 3, 5, 1] * 12], 24


def main(device: str) -> None:
    delta = DeltaRule((0, 1, 3), key_heads=2, value_heads=4, key_dim=8, value_dim=8)
    shape = dict(num_layers=4, delta=delta, qk_norm=True, out_gate=True, head_dim=16)
    expected = [out.tokens for out in ms.generate(random_model(**shape), PROMPTS, N)]
    with tempfile.TemporaryDirectory() as folder:
        save_folder(random_model(**shape), folder, bits=None)
        target, half = (ms.load(folder, device=device, dtype=dtype) for dtype in (torch.float64, torch.bfloat16))
    drafts = random_model(num_layers=4, head_dim=16, device=device)
    assert target.backend is None and [out.tokens for out in ms.generate(target, PROMPTS, N)] == expected
    D = ms.drafters
    made = D.NGram(), D.EarlyExit(target, 3), D.Model(drafts), D.Cascade(D.NGram(), drafts), D.Quantized(target)
    for drafter in made:
        assert [out.tokens for out in ms.speculate(target, PROMPTS, drafter, 3, N)] == expected, drafter
        for options in (dict(), dict(num_blocks=16, max_chunk=7)):
            engine = ms.Engine(target, drafter, **dict(num_blocks=64, block_size=8) | options)
            outs = engine.generate(PROMPTS, max_new_tokens=N, progress=False)
            assert [out.tokens for out in outs] == expected, (drafter, options)
        print(f"{drafter!r}: generate, speculate and the engine say what a CPU says", flush=True)
    usual = random_model(num_layers=3, head_dim=16, device=device)  # a captured target with a hybrid draft
    said = [out.tokens for out in ms.generate(usual, PROMPTS, N)]
    engine = ms.Engine(usual, D.Model(target), num_blocks=64)
    assert [out.tokens for out in engine.generate(PROMPTS, max_new_tokens=N, progress=False)] == said
    outs = ms.speculate(half, PROMPTS, D.EarlyExit(half, 3), 3, N)  # bfloat16: it runs, and S is summed in float32
    assert all(len(out.tokens) == N for out in outs)
    print("all hold")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["cuda"])
