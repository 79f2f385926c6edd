"""Teach what DFlash 2 and DSpark add to a block drafter (drafters/dflash2.py, drafters/dspark.py), both at once.

The blocks are those of dflash.py, of a drafter that is there (--backbone) and stays as it is. Each blank is
told the token that was written before it, and learns the target's distribution there.
"""

from __future__ import annotations

from functools import partial
from os.path import relpath
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minispec.drafters.dflash import DFlashHead
from minispec.drafters.dflash2 import DFlash2Head, PairHead
from minispec.drafters.dspark import DSparkHead
from minispec.load.head_files import fill
from minispec.load.model import Model
from minispec.load.registry import locate
from minispec.model import Transformer

from ..cli import options
from . import arguments
from .corpus import Corpus
from .dflash import blanks_of, read_blocks, store, train
from .lessons import Batch, Lessons, split_rows


@torch.no_grad()
def new_head(kind: type[PairHead], b: DFlashHead, **shape) -> PairHead:
    """A drafter of this kind with the backbone of b, to train: its scores are all zero."""
    head = kind(b.config, b.head_ids, b.hidden_layers, b.block, b.lm_head is not None, b.public, **shape)
    head = head.to(b.head_ids.device, b.dtype)
    head.load_state_dict(b.state_dict(), strict=False)
    if b.public:
        head.mask_token_id, head.mask = b.mask_token_id, b.mask
    for zero in [head.pairs.gate] if kind is DFlash2Head else [head.pairs.second, head.confidence]:
        torch.nn.init.zeros_(zero.weight)
    return head


def best_logits(head: PairHead, states: Tensor, before: Tensor, target: Transformer) -> Tensor:
    """Logits [..., v] of blanks with these states [..., d] after the tokens `before` [...]."""
    rows = head.head_rows(target)
    unary = (states @ rows.T).float()
    context = head.pairs.gated(head.pairs.before(before, target.embed_tokens.weight), states)
    scores = (context @ head.pairs.second(rows).T).float()
    if head.kind == "dspark":
        return unary + scores
    best = unary.topk(min(head.top, unary.shape[-1])).indices
    return unary.scatter_add(-1, best, scores.gather(-1, best))


def pair_loss(heads: nn.ModuleDict, lessons: Lessons, batch: Batch, anchors: Tensor, real: Tensor, decay: float):
    """The weighted mean over all blanks of both cross-entropies, and of DSpark's confidence in Σ min(p, q)."""
    two, spark, target = heads["dflash2"], heads["dspark"], lessons.target
    asking, learnt = blanks_of(batch, anchors, real, two.block)
    row = torch.arange(len(anchors), device=anchors.device)[:, None, None].expand_as(asking)[learnt]
    place, before = asking[learnt], batch.tokens[row, asking[learnt]]  # [N] each
    weight = torch.exp(-torch.arange(two.block - 1, device=anchors.device) / decay).expand_as(learnt)[learnt]
    with torch.no_grad():
        p = lessons.probs(batch.answers.states[row, place], batch.answers.log_z[row, place], two.head_ids)  # [N, v]
        states = read_blocks(two, target, batch.tokens, batch.answers.hidden, anchors)[:, :, 1:][learnt]  # [N, d]
    log_q = [best_logits(head, states, before, target).log_softmax(-1) for head in (two, spark)]
    loss = -sum((p * x).sum(-1) for x in log_q)
    overlap = torch.minimum(p, log_q[1].detach().exp()).sum(-1)
    codes = spark.pairs.before(before, target.embed_tokens.weight)
    sure = spark.confidence(torch.cat([states, codes.detach()], -1))[:, 0].float()
    loss = loss + F.binary_cross_entropy_with_logits(sure, overlap, reduction="none")
    return (weight * loss).sum() / weight.sum()


def add_arguments(parser) -> None:
    add = partial(options.add, parser)
    arguments.add_training(parser, 1500, 1e-3, 16_000)
    parser.add_argument("--backbone", metavar="NAME", help="a DFlash drafter (default: the one that ships)")
    add("rank", options.count, 256, "of the scores")
    add("neurons", options.count, 1024, "of the MLP that makes A of an embedding")
    add("every", options.count, 6, "one block for so many tokens of a sequence")
    add("decay", options.positive, 4.0, "γ₀: the j-th blank counts exp(−(j − 1) / γ₀)", "X")
    arguments.add_keep(parser)


def run(args, target: Model) -> None:
    learnt, unseen = split_rows(Corpus.load(*args.corpus))
    name = args.backbone or f"{target.name}-dflash"
    base = DFlashHead.load(target, name)
    fill(base.float(), locate(name))  # again, for a target in half precision has rounded them
    beside = relpath(name, args.out / "dflash2") if Path(name).is_dir() else name  # as seen from there
    shape = dict(rank=args.rank, neurons=args.neurons, backbone=beside)
    heads = nn.ModuleDict({kind.kind: new_head(kind, base, **shape) for kind in (DFlash2Head, DSparkHead)})
    heads.requires_grad_(False)
    for head in heads.values():
        head.pairs.requires_grad_(True)
    heads["dspark"].confidence.requires_grad_(True)
    lessons = Lessons(target.transformer, learnt, base.hidden_layers, **arguments.chosen(args, "keep keep_bits"))
    how = arguments.chosen(args, "steps lr batch_tokens every decay seed stop_after")
    train(heads, lessons, pair_loss, folder=args.out, **how)
    for head in heads.values():
        store(head, target, args.out / head.kind, unseen, guess=best_logits)
