"""The leaderboard of the capstone: minispec capstone FILE.py

FILE.py defines `propose(draft, sequence, k)`: up to k draft tokens after a sequence; `draft` is a small model with a
cache, to be used or not. The learner's own loop and verdict drive it (else ours), or a `loop` and `verify` of the file.
The output has to be the target's own, token for token, in float64. Only then is there a score: tokens per forward pass
of the target, where a pass of the draft model costs its share of the target's parameters. Drafts are equally long.
"""

import json
import runpy
from functools import cache
from pathlib import Path

import torch

import minispec as ms
from minispec.load.write import write_whole

from .check import mine, progress

K, COUNT = 4, 48
PROMPTS = (
    "One day, a girl named Lily",
    "Once upon a time there was a little dog. He liked to",
    "Tom and Mia went to the park. Tom said: I see a bird. Mia said: I see a bird. Tom said:",
    "The cat sat on the mat. The dog sat on the mat. The bird sat on the mat. The",
)


class RealModel:
    """A model as set 18 uses it: one sequence, and a cache that holds the prompt but for its last token."""

    def __init__(self, model, prompt: list[int], most: int):
        self.transformer, self.cache = model.transformer, model.transformer.new_cache(1, len(prompt) + COUNT + 2 * K)
        self.rewind, self.most, self.passes = self.cache.rewind, len(prompt), -1  # the prefill does not count
        self.read(prompt[:-1])
        self.most = most

    @property
    def length(self) -> int:
        return int(self.cache.lengths[0])

    @torch.inference_mode()
    def read(self, tokens: list[int]) -> torch.Tensor:
        """Logits [len(tokens), V] of a pass over tokens that come after those in the cache."""
        if len(tokens) > self.most:
            raise ValueError(f"{len(tokens)} tokens in one pass of the target: a draft has {K} tokens at most")
        self.passes += 1
        return self.transformer(torch.tensor([tokens]), self.cache).logits[0]


@cache
def models():
    """Target, draft model, and each prompt with what plain decoding makes of it."""
    target, draft = (ms.load(name, device="cpu", dtype=torch.float64) for name in ("micro", "micro-draft"))
    prompts = [target.encode(text) for text in PROMPTS]
    return target, draft, [(prompt, ms.generate(target, prompt, max_new_tokens=COUNT).tokens) for prompt in prompts]


def verdict(logits, q, drafted: list[int]) -> list[int]:
    accepted, token = mine("05.greedy_verify")(logits, drafted)
    return [*drafted[:accepted], token]


def scored(name: str, propose, verify=verdict, loop=None) -> tuple[float, int, int, int]:
    """The score of a drafter, tokens, passes of the target and of the draft model; ValueError if it is not exact."""
    (target, draft, texts), loop, counts = models(), loop or mine("18.loop"), torch.zeros(3)
    for prompt, plain in texts:
        pair = RealModel(target, prompt, most=K + 1), RealModel(draft, prompt, most=COUNT)
        end = min(target.end_tokens, default=-1)
        new = loop(*pair, lambda *given: (list(propose(*given)), None), verify, list(prompt), K, COUNT, end)
        if list(new) != plain:
            raise ValueError(f"{name} is not exact, so it has no score: see what it makes of {target.decode(prompt)!r}")
        counts += torch.tensor([len(plain), *(model.passes for model in pair)])
    tokens, passes, draft_passes = map(int, counts)
    return tokens / (passes + draft_passes * draft.num_parameters / target.num_parameters), tokens, passes, draft_passes


def by_draft_model(draft, sequence: list[int], k: int) -> list[int]:
    """Ours, to compare with."""
    new: list[int] = []
    while len(new) < k:
        new.append(int(draft.read([*sequence, *new][draft.length :])[-1].argmax()))
    return new


def leaderboard(file: Path) -> str:
    """Score a file, keep the result beside the progress, and return the table of all of them, best first."""
    found = runpy.run_path(str(file))
    if not callable(found.get("propose")):
        raise ValueError(f"file={str(file)!r} defines no function propose(draft, sequence, k)")
    kept = progress.place() and progress.place().with_name("leaderboard.json")
    known = json.loads(kept.read_text(encoding="utf-8")) if kept and kept.is_file() else {}
    known[file.stem] = scored(file.stem, **{n: found[n] for n in ("propose", "verify", "loop") if n in found})
    if kept:
        write_whole(kept, json.dumps(known, indent=1))
    known["(our draft model)"] = scored("ours", by_draft_model)
    lines = [f"{'':3} {'drafter':20} {'score':>6} {'tokens per pass':>16} {'draft passes':>13}"]
    best_first = sorted(known.items(), key=lambda item: -item[1][0])
    for rank, (name, (score, tokens, passes, draft_passes)) in enumerate(best_first, start=1):
        lines.append(f"{rank:3} {name:20} {score:6.2f} {tokens / passes:16.2f} {draft_passes:13}")
    return "\n".join([*lines, "plain decoding: 1.00"])
