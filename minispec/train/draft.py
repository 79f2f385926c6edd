"""Distil a draft: a few layers that put their probability where the target puts it.

What speculation pays for is Σ min(p, q), the overlap of the draft's law q with the target's p. Soft cross-entropy
−Σ p log q learns fast and pulls q towards p everywhere; a last phase adds the total variation 1 − Σ min(p, q) itself.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from ..model import Transformer
from ..weights import Model, save_folder
from .corpus import Corpus
from .loop import fit

WIDTHS = (128, 192, 256, 320, 384, 512, 640, 768, 1024)  # rows are sorted into buckets, so that little is padding


def frequent_tokens(corpus: Corpus, vocab_size: int, count: int, always: Sequence[int] = ()) -> Tensor:
    """The tokens a reduced draft vocabulary keeps: the most frequent ones of the replies, sorted by id."""
    position = torch.arange(corpus.tokens.shape[1])
    reply = (position >= corpus.prompt[:, None]) & (position < corpus.length[:, None])
    frequency = torch.bincount(corpus.tokens[reply].long(), minlength=vocab_size)
    frequency[list(always)] = frequency.max() + 1
    return frequency.topk(count).indices.sort().values


def draft_from(target: Transformer, layers: Sequence[int], head_ids: Tensor) -> Transformer:
    """A draft made of some of the target's layers, its frozen embedding and the chosen rows of its head."""
    config = dataclasses.replace(target.config, num_layers=len(layers), head_vocab=len(head_ids))
    draft = Transformer(config).to(target.device)
    draft.embed_tokens.weight = torch.nn.Parameter(target.embed_tokens.weight.detach().float(), requires_grad=False)
    for mine, index in zip(draft.layers, layers, strict=True):
        mine.load_state_dict(target.layers[index].state_dict())
    draft.norm.load_state_dict(target.norm.state_dict())
    with torch.no_grad():
        draft.lm_head.weight.copy_(target.lm_head.weight[head_ids.to(target.device)])
        draft.head_ids.copy_(head_ids)
    return draft


class Lessons:
    """A corpus with the target's answer at every position, computed once: its last state and log Σ exp(logits).

    p(x) = exp(state · head[x] − log_z), so the law on a reduced vocabulary costs only that many rows of the head.
    """

    def __init__(self, target: Transformer, corpus: Corpus, batch_tokens: int = 16_384):
        self.head = target.lm_head.weight.detach()  # [V, d]
        self.buckets = []
        device, shortest = target.device, 0
        for width in WIDTHS:
            rows = corpus[(corpus.length > shortest) & (corpus.length <= width)]
            shortest = width
            if len(rows) == 0:
                continue
            tokens = torch.nn.functional.pad(rows.tokens, (0, max(0, width - rows.tokens.shape[1])))[:, :width]
            tokens = tokens.long().to(device)  # [n, w]
            states, log_z = self._answers(target, tokens, max(1, batch_tokens // width))
            self.buckets.append((tokens, states, log_z, rows.asked(width).to(device)))
        self.weights = [int(asked.sum()) for *_, asked in self.buckets]

    @torch.no_grad()
    def _answers(self, target: Transformer, tokens: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        n, width = tokens.shape
        states = torch.empty(n, width, target.config.hidden_size, dtype=target.dtype, device=tokens.device)
        log_z = torch.empty(n, width, device=tokens.device)
        for i in tqdm(range(0, n, batch), desc=f"target reads rows of {width}", unit="batch", mininterval=2):
            states[i : i + batch] = target.norm(target.body(tokens[i : i + batch])[0])
            log_z[i : i + batch] = (states[i : i + batch] @ self.head.T).float().logsumexp(-1)
        return states, log_z

    def batch(self, step: int, seed: int, batch_tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The rows of one step: tokens [n, w], asked [n, w], and the target's states [m, d], log_z [m] where asked."""
        rng = random.Random(f"{seed} {step}")
        tokens, states, log_z, asked = rng.choices(self.buckets, self.weights)[0]
        rows = torch.tensor(rng.choices(range(len(tokens)), k=max(1, batch_tokens // tokens.shape[1])))
        rows = rows.to(tokens.device)
        asked = asked[rows]
        return tokens[rows], asked, states[rows][asked], log_z[rows][asked]

    def law(self, states: Tensor, log_z: Tensor, head_ids: Tensor | None) -> Tensor:
        """The target's p on the draft's vocabulary, [m, draft vocabulary]."""
        head = self.head if head_ids is None else self.head[head_ids]
        return ((states @ head.T).float() - log_z[:, None]).exp()


def distill(
    target: Transformer,
    draft: Transformer,
    corpus: Corpus,
    *,
    steps: int,
    folder: str | Path,
    lr: float = 1.2e-3,
    batch_tokens: int = 18_000,
    overlap_from: float = 0.5,
    seed: int = 0,
    **options,
) -> list[dict]:
    """Teach the draft the target's laws on the corpus. After `overlap_from` of the steps, the overlap itself counts."""
    lessons = Lessons(target, corpus)
    draft.train()

    def loss_at(step: int) -> Tensor:
        tokens, asked, states, log_z = lessons.batch(step, seed, batch_tokens)
        with torch.no_grad():
            p = lessons.law(states, log_z, draft.head_ids)  # [m, v], sums to less than one: the tail is missing
        logits = draft.lm_head(draft.norm(draft.body(tokens)[0][asked])).float()  # [m, v]
        log_q = logits.log_softmax(-1)
        cross_entropy = -(p * log_q).sum(-1).mean()
        progress = (step / steps - overlap_from) / 0.2
        if progress <= 0:
            return cross_entropy
        total_variation = 1 - torch.minimum(p, log_q.exp()).sum(-1).mean()
        blend = min(0.8, progress)
        return (1 - blend) * cross_entropy + blend * 4 * total_variation

    curve = fit(draft, loss_at, steps=steps, lr=lr, folder=folder, **options)
    draft.eval()
    return curve


def add_arguments(parser) -> None:
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="folders of `minispec train corpus`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 1, 29], help="target layers to start from")
    parser.add_argument("--head-vocab", type=int, default=8192, help="how many tokens the draft can propose")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch-tokens", type=int, default=18_000)
    parser.add_argument("--lr", type=float, default=1.2e-3)
    parser.add_argument("--stop-after", type=int, help="steps of this call; call again to go on")


def run(args, target: Model) -> None:
    corpus = Corpus.load(*args.corpus)
    ids = frequent_tokens(corpus, target.config.vocab_size, args.head_vocab, always=sorted(target.end_tokens))
    draft = draft_from(target.transformer, args.layers, ids)
    distill(target.transformer, draft, corpus, steps=args.steps, folder=args.out, lr=args.lr,
            batch_tokens=args.batch_tokens, seed=args.seed, stop_after=args.stop_after)  # fmt: skip
    stored = Model(f"{target.name}-draft", draft, end_tokens=target.end_tokens)
    save_folder(stored, args.out / "model", embeddings_from=target.name)
    read = sum(p.numel() for p in draft.layers.parameters()) + draft.lm_head.weight.numel()
    share = read / target.num_parameters  # the target's head is its embedding, so every parameter is read
    print(f"saved {args.out / 'model'}: reads {read / 1e6:.1f} M parameters a pass, {share:.3f} of the target's")
