"""Train Medusa's heads: head k, at position t, learns the distribution that the target has k positions later.

loss = Σ_k 0.8^k · CE(p_{t+k}, head k at t). Near tokens weigh more, because a far one only counts when all nearer ones
were right. The target is frozen. Its normed states are what the heads read, and k positions later they are what the
heads should have said, so with `keep` no step runs the target at all.

How good the candidates are is then measured on rows that were held out, for Medusa to choose its tree by.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from minispec.drafters.medusa import MedusaHeads
from minispec.load.model import Model
from minispec.tree import best_tree, expected_tokens

from ..cli import options
from . import arguments
from .corpus import BatchWriter, Corpus, write
from .lessons import Batch, Lessons, frequent_tokens, go_on, split_rows
from .loop import fit
from .micro import HEROES, NATURES

DECAY = 0.8


def heads_loss(heads: MedusaHeads, lessons: Lessons, batch: Batch) -> Tensor:
    """Σ_k 0.8^k · soft cross-entropy of head k, over positions with a reply token to predict on both ends."""
    row, place = batch.asked.nonzero(as_tuple=True)  # m positions; those of one row are neighbours, in order
    h, log_z = batch.answers.states[row, place], batch.answers.log_z[row, place]
    with torch.no_grad():
        p = lessons.probs(h, log_z, heads.head_ids)  # [m, v], sums to less than one: the tail is missing
    z = heads.features(h)  # [m, K, d]
    loss = torch.zeros((), device=h.device)
    for k in range(1, heads.count + 1):
        same_row = row[k:] == row[:-k]  # [m − k], else k positions on is another text
        rows = heads.head if heads.head.ndim == 2 else heads.head[k - 1]  # [v, d]
        log_q = (z[:-k, k - 1] @ rows.T).float().log_softmax(-1)  # [m − k, v]
        cross_entropy = -(p[k:] * log_q).sum(-1) * same_row
        loss = loss + DECAY**k * cross_entropy.sum() / same_row.sum().clamp(min=1)
    return loss


@torch.no_grad()
def calibrate(target: Model, heads: MedusaHeads, corpus: Corpus, batch_tokens: int = 8192) -> list[list[float]]:
    """accuracy[k][i]: how often candidate i of head k + 1 was the token that came, given that all before it came too.

    Came too means: each nearer head had the right token among its candidates, so the text was still inside the tree.
    """
    lessons = Lessons(target.transformer, corpus, keep=False)
    hits = torch.zeros(heads.count, len(heads.accuracy[0]), dtype=torch.float64, device=target.device)
    tries = torch.zeros(heads.count, dtype=torch.float64, device=target.device)
    for batch in lessons.in_order(batch_tokens):
        row, place = batch.asked.nonzero(as_tuple=True)  # n positions, as in heads_loss
        came = batch.tokens[row, place + 1]  # [n]
        candidates = heads.candidates(batch.answers.states[row, place].to(heads.weight.dtype))  # [n, K, m]
        inside = torch.ones_like(came, dtype=torch.bool)
        for k in range(1, heads.count + 1):
            inside = inside[:-1] & (row[k:] == row[:-k])  # [n − k]
            right = (candidates[:-k, k - 1] == came[k:, None]) & inside[:, None]  # [n − k, m]
            hits[k - 1] += right.sum(0)
            tries[k - 1] += inside.sum()
            inside = right.any(-1)
    return (hits / tries.clamp(min=1)[:, None]).tolist()


@torch.no_grad()
def enlarged(heads: MedusaHeads, target: Model, corpus: Corpus, *, head_vocab, own_head, blocks) -> MedusaHeads:
    """Heads that borrow W₂, with more to learn: more tokens to propose (their own and the next most frequent ones), an
    LM head of their own, more blocks. Until they learn, logits of the tokens that they had stay what they were."""
    ids, V, have = heads.head_ids, target.config.vocab_size, heads.head.shape[0]
    for name, value, least in (("head_vocab", head_vocab, have), ("blocks", blocks, heads.blocks)):
        if value is not None and value < least:
            raise ValueError(f"{name}={value}, but the stored heads have {least}: give as many at least, or start anew")
    if heads.map is not None and own_head not in (None, "map"):
        raise ValueError(f"own_head={own_head!r}, but the stored heads have maps: leave it out, or start anew")
    if head_vocab is not None and head_vocab > have:
        ids = frequent_tokens(corpus, V, head_vocab, always=ids.tolist()) if head_vocab < V else None
    large = MedusaHeads(target, heads.count, ids, own_head or heads.own_head, blocks or heads.blocks).float()
    parts = dict(large.named_parameters())
    for name, weight in heads.named_parameters():
        parts[name].copy_(weight)
    large.accuracy = heads.accuracy
    return large


def train_heads(
    target: Model,
    corpus: Corpus | None = None,
    *,
    steps: int = 600,
    lr: float = 4e-3,
    batch_tokens: int = 512,
    head_vocab: int | None = None,
    own_head: bool | str | None = None,
    blocks: int | None = None,
    candidates: int | None = None,
    greedy: bool = False,
    start: str | Path | None = None,
    keep: bool = True,
    folder: str | Path | None = None,
    seed: int = 0,
    **options,
) -> tuple[MedusaHeads, list[dict]]:
    """Heads, trained and calibrated on a corpus the target wrote, and the curve of their loss.

    As it stands, `train_heads(ms.load("micro"))` is a lesson's live training: the target writes a few stories, and the
    heads learn from them in under a minute on one CPU core. Most of a step is W₂, so they propose only the `head_vocab`
    most frequent tokens (768). There are four heads with the target's W₂, or one to train (`own_head`), and as
    many `blocks` (1). With `start`, all that is as in a stored folder, and training goes on from there; heads that
    borrow W₂ may then be `enlarged`. `folder` keeps checkpoints, to resume. The accuracy of `candidates` of each head
    (10) is measured, with `greedy` on greedy replies alone.
    """
    corpus = tell_stories(target, seed=seed) if corpus is None else corpus
    learnt, held_out = split_rows(corpus)
    if start:
        heads = MedusaHeads.load(target, start)
        stored = {name: getattr(heads, name) for name in ("own_head", "blocks")}
        stored["head_vocab"] = heads.head.shape[-2]
        more = {"head_vocab": head_vocab, "own_head": own_head, "blocks": blocks}
        go_on(heads, start, stored, {} if heads.borrows else more)
        if heads.borrows:
            heads = enlarged(heads, target, corpus, **more)
    else:
        V, ids = target.config.vocab_size, None
        if (size := head_vocab or 768) < V:
            ids = frequent_tokens(corpus, V, size, always=sorted(target.end_tokens))
        heads = MedusaHeads(target, 4, ids, own_head or False, blocks or 1).float()
    if candidates:
        heads.guess(candidates)
    lessons = Lessons(target.transformer, learnt, keep=keep)

    def loss_at(step: int) -> Tensor:
        return heads_loss(heads, lessons, lessons.batch(step, seed, batch_tokens))

    with tempfile.TemporaryDirectory() as scratch:
        curve = fit(heads, loss_at, steps=steps, lr=lr, folder=folder or Path(scratch) / "medusa", **options)
    heads.requires_grad_(False).eval()
    heads.accuracy = calibrate(target, heads, held_out.greedy() if greedy else held_out)
    return heads, curve


def openings(target: Model, count: int, rng: random.Random) -> list[list[int]]:
    heroes = (f"{rng.choice(NATURES)} {rng.choice(HEROES)}" for _ in range(count))
    return [target.encode(f"Once upon a time, there was a {hero}") for hero in heroes]


def tell_stories(
    target: Model, rows: int = 128, max_new_tokens: int = 192, temperatures: Sequence[float] = (), seed: int = 0
) -> Corpus:
    """A small corpus in memory: stories of the target, each about a hero of its own."""
    rng, temperatures = random.Random(seed), temperatures or (0.0, 0.5, 0.8, 1.0)
    prompts = openings(target, rows, rng)
    writer = BatchWriter(target, rows, max(map(len, prompts)), max_new_tokens, seed)
    return writer(prompts, rng.choices(temperatures, k=rows), seed)


def add_arguments(parser) -> None:
    text = parser.add_mutually_exclusive_group(required=True)
    options.add(text, "corpus", Path, None, arguments.CORPUS, "FOLDER", nargs="+")
    options.add(text, "stories", options.count, None, "instead, N stories that the target tells first (micro)")
    arguments.add_training(parser, 3000, 2e-3, corpus=False)
    arguments.add_head_vocab(parser)
    copies = "also train a copy of the LM head, one for all heads; each: one for each; map: one for each, as the "
    copies += "target's times a small matrix"
    parser.add_argument("--own-head", nargs="?", const=True, choices=["each", "map"], help=copies)
    options.add(parser, "blocks", options.count, None, "blocks z + SiLU(Wz + b) of a head (default: 1)")
    options.add(parser, "candidates", options.count, None, "of each head that may be in a tree (default: 10)")
    greedy = "measure how good candidates are on greedy replies, not on all"
    parser.add_argument("--greedy", action="store_true", help=greedy)
    arguments.add_start(parser, "; without an own LM head they may get one, a larger --head-vocab, more --blocks")
    arguments.add_keep(parser, default=True, bits=False)


def run(args, target: Model) -> None:
    if args.stories:
        heroes = openings(target, args.stories, random.Random(args.seed))
        how = dict(rows=args.stories, max_new_tokens=192, batch=min(args.stories, 1024), seed=args.seed)
        corpus = write(target, heroes, args.out / "stories", **how)
    else:
        corpus = Corpus.load(*args.corpus)
    names = "steps lr batch_tokens own_head blocks candidates greedy start keep seed stop_after"
    head_vocab = args.head_vocab or (None if args.start else 8192)
    how = arguments.chosen(args, names) | dict(head_vocab=head_vocab)
    heads, _ = train_heads(target, corpus, folder=args.out, **how)
    folder = args.out / "model"
    heads.save(target, folder)
    stored = MedusaHeads.load(target, folder)
    _, unseen = split_rows(corpus)  # what is stored is measured: 8 bits, the target's dtype
    heads.accuracy = calibrate(target, stored, unseen.greedy() if args.greedy else unseen)
    heads.save(target, folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"saved {folder}: {size / 1e6:.1f} MB, {heads.count} heads")
    print(f"right, given that all before was: best candidate, and any of the first {len(heads.accuracy[0])}")
    for k, accuracy in enumerate(heads.accuracy, start=1):
        print(f"  head {k}: {accuracy[0]:.3f}  {sum(accuracy):.3f}")
    for nodes in (8, 16, 24, 32, 64):
        tree = best_tree(heads.accuracy, nodes)
        print(f"  best tree of {nodes} nodes: {expected_tokens(heads.accuracy, tree):.2f} tokens per cycle expected")
