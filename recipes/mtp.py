"""Train a multi-token prediction module for a target that has none: the loss of EAGLE's head, on another module.

DeepSeek-V3 and Qwen3-Next train theirs together with the model. Here the target stays as it is, and the module learns
the target's own distribution along text that the target wrote. How it is chained while it learns (--unroll) is what
sets the two apart: with 1 it sees only true states, as DeepSeek-V3's did; with more it also drafts on from its own, as
Qwen3-Next's does, and the second and third tokens of a draft are right more often.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from minispec.cli import options
from minispec.drafters.mtp import MTPHead
from minispec.load.handle import Model

from .corpus import Corpus
from .eagle import calibrate, copy_neurons, eagle_loss
from .lessons import Lessons, go_on, split_rows
from .loop import fit

UNROLL = 3


@torch.no_grad()
def new_head(target: Model, *, seed: int = 0, **options) -> MTPHead:
    """A module to start from: it hands on the target's state through a quiet copy of its last layer, all but deaf to
    the embedding. So at first it says what the target said one token earlier."""
    head, last = MTPHead(target, **options), target.transformer.layers[-1]
    d, generator = head.config.hidden_size, torch.Generator().manual_seed(seed)
    for weight in head.parameters():
        weight.copy_(0.01 * torch.randn(weight.shape, generator=generator))  # faint: it only breaks symmetries
    head.eh_proj.weight[:, d:] += torch.eye(d, device=target.device)
    head.enorm.weight.fill_(1.0)
    head.hnorm.weight.fill_(1.0)
    head.norm.weight.fill_(target.transformer.norm.weight.square().mean().sqrt())  # the state had its gains already
    for part in ("input_layernorm", "self_attn", "post_attention_layernorm"):
        getattr(head.layer, part).load_state_dict(getattr(last, part).state_dict())
    copy_neurons(getattr(last.mlp, "experts", [last.mlp])[0], head.layer.mlp)  # of a mixture, any expert is a start
    for quiet in (head.layer.self_attn.o_proj, head.layer.mlp.down_proj):  # they were made for a far larger stream
        quiet.weight.mul_(0.1)
    return head


def train_head(
    target: Model,
    corpus: Corpus,
    *,
    steps: int,
    folder: str | Path,
    lr: float = 1.2e-3,
    batch_tokens: int = 20_000,
    unroll: int = UNROLL,
    start: str | Path | None = None,
    keep: bool = False,
    seed: int = 0,
    stop_after: int | None = None,
    log_every: int = 50,
    **shape,
) -> tuple[MTPHead, list[dict]]:
    """A module, trained on text the target wrote, and the curve of its loss. `shape` are MTPHead's own options."""
    if not (isinstance(unroll, int) and unroll >= 1):
        raise ValueError(f"unroll={unroll!r}: give the number of steps to draft along the text, a whole number ≥ 1")
    learnt, _ = split_rows(corpus)
    if start:
        head = MTPHead.load(target, start)
        go_on(head, start, head.shape, shape)
    else:
        head = new_head(target, seed=seed, **{name: v for name, v in shape.items() if v is not None}).float()
    lessons = Lessons(target.transformer, learnt, head.hidden_layers, keep=keep)
    curve = fit(
        head,
        lambda step: eagle_loss(head, lessons, lessons.batch(step, seed, batch_tokens), unroll),
        steps=steps,
        lr=lr,
        folder=folder,
        stop_after=stop_after,
        log_every=log_every,
    )
    return head.requires_grad_(False).eval(), curve


def add_arguments(parser) -> None:
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="folders of `python -m recipes corpus`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mlp", type=options.count, help="neurons of its layer (default: as many as the target's)")
    parser.add_argument(
        "--norm-output",
        action="store_true",
        default=None,
        help="hand on the normed state, as Qwen3-Next does (default: DeepSeek-V3's form)",
    )
    parser.add_argument("--start", type=Path, metavar="FOLDER", help="a stored module to go on from")
    parser.add_argument(
        "--unroll",
        type=options.count,
        default=UNROLL,
        help="steps to draft along the text in training: 1 is DeepSeek-V3's way (default: %(default)s)",
    )
    parser.add_argument("--steps", type=options.count, default=4000)
    parser.add_argument("--batch-tokens", type=options.count, default=20_000)
    parser.add_argument("--lr", type=options.positive, default=1.2e-3)
    parser.add_argument("--stop-after", type=options.count, help="steps of this call; call again to go on")
    parser.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="ask the target once for all sequences, or anew in every step",
    )


def run(args, target: Model) -> None:
    corpus = Corpus.load(*args.corpus)
    head, _ = train_head(
        target,
        corpus,
        steps=args.steps,
        folder=args.out,
        lr=args.lr,
        batch_tokens=args.batch_tokens,
        unroll=args.unroll,
        start=args.start,
        keep=args.keep,
        seed=args.seed,
        stop_after=args.stop_after,
        mlp=args.mlp,
        norm_output=args.norm_output,
    )
    folder = args.out / "model"
    head.save(target, folder)
    stored = MTPHead.load(target, folder)
    head.accuracy = calibrate(target, stored, split_rows(corpus)[1], UNROLL)  # of what is stored
    head.save(target, folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    read = sum(p.numel() for p in head.parameters()) + head.head.numel()
    share = read / target.num_parameters  # the LM head is read, whoever owns it
    print(f"saved {folder}: {size / 1e6:.1f} MB, reads {read / 1e6:.1f} M parameters a pass, {share:.3f} of the target")
    print("right at step 1, 2, …, given that all before was: " + "  ".join(f"{a:.3f}" for a in head.accuracy))
