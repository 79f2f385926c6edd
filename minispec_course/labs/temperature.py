"""Acceptance against temperature, the target's and the draft's separately.

A drafted token is accepted with probability Σ min(p, q). Both temperatures bend it: the target's because it decides
what has to be guessed, the draft's because nobody says that a draft has to be as bold as its target (whatever it draws
from, the output's law stays the target's). The target writes text at each of its temperatures, both models then read
it, and the overlap of their laws is computed exactly at every token: no draft is drawn, so no luck is involved beyond
the text itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from minispec.generate import generate, pad
from minispec.load.handle import Model
from minispec.measure import machine
from minispec.sampling import Sampling

TARGET = (0.0, 0.4, 0.7, 1.0, 1.3)
DRAFT = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
PLACES = 128  # laws held at once: 128 rows of a vocabulary of 50,000 are 25 MB


@torch.inference_mode()
def overlap(
    target: Model,
    draft: Model,
    rows: Sequence[Sequence[int]],
    prompts: Sequence[int],
    temperature: float,
    draft_temperatures: Sequence[float],
) -> tuple[list[float], int]:
    """Mean Σ min(p, q) over the tokens after the first `prompts[i]` of each row, one for each draft temperature.

    p is the target's law at `temperature`, q the draft's; 0 is the one-hot law of greedy decoding. Also: how many
    tokens it is the mean of.
    """
    tokens, length = pad([list(row) for row in rows], target.device)  # [B, T], [B]
    position = torch.arange(tokens.shape[1], device=target.device)
    start = torch.tensor(prompts, device=target.device)
    asked = (position >= start[:, None] - 1) & (position < length[:, None] - 1)  # [B, T]: a new token comes next
    x, y = (model.transformer.body(tokens)[0][asked] for model in (target, draft))  # [n, d] of either
    sums = torch.zeros(len(draft_temperatures), dtype=torch.float64, device=target.device)
    for some_x, some_y in zip(x.split(PLACES), y.split(PLACES), strict=True):
        p = Sampling(temperature).probs(target.transformer.head(some_x))  # [PLACES, V]
        logits = draft.transformer.head(some_y)
        for i, T in enumerate(draft_temperatures):
            sums[i] += torch.minimum(p, Sampling(T).probs(logits)).sum(dtype=torch.float64)
    return (sums / len(x)).tolist(), len(x)


def measure(
    target: Model,
    draft: Model,
    prompts: Sequence[Sequence[int]],
    target_temperatures: Sequence[float] = TARGET,
    draft_temperatures: Sequence[float] = DRAFT,
    new_tokens: int = 64,
    seed: int = 0,
) -> dict:
    """The whole grid: acceptance[i][j] at target_temperatures[i] and draft_temperatures[j]."""
    for T in (*target_temperatures, *draft_temperatures):
        Sampling(T)  # refuses what is no temperature
    if draft.config.vocab_size != target.config.vocab_size:
        raise ValueError(
            f"draft={draft.name!r} speaks {draft.config.vocab_size} tokens and the target {target.config.vocab_size}: "
            "they need the same tokenizer, so choose a draft of the target's family"
        )
    if (longest := max(map(len, prompts)) + new_tokens) > draft.config.max_length:
        raise ValueError(f"new_tokens={new_tokens}: the draft reads {draft.config.max_length} tokens, not {longest}")
    acceptance, counts = [], []
    for T in tqdm(target_temperatures, desc="target's temperature", leave=False, disable=None):  # on terminals only
        outs = generate(target, prompts, new_tokens, temperature=T, seed=seed)
        rows = [[*prompt, *out.tokens] for prompt, out in zip(prompts, outs, strict=True)]
        means, count = overlap(target, draft, rows, [len(prompt) for prompt in prompts], T, draft_temperatures)
        acceptance.append(means)
        counts.append(count)
    return {
        "benchmark": "temperature",
        "target": Path(target.name).name or target.name,
        "draft": Path(draft.name).name or draft.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "prompts": len(prompts),
        "new_tokens": new_tokens,
        "seed": seed,
        "target_temperatures": list(target_temperatures),
        "draft_temperatures": list(draft_temperatures),
        "acceptance": acceptance,
        "tokens": counts,
        "machine": machine(),
    }
