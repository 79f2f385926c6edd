"""Train a multi-token prediction module for a target that has none: the loss of EAGLE's head, on another module.

DeepSeek-V3 and Qwen3-Next train theirs together with the model. Here the target stays as it is, and the module learns
the target's own distribution along text that the target wrote. How it is chained while it learns (--unroll) is what
sets the two apart: with 1 it sees only true states, as DeepSeek-V3's did; with more it also drafts on from its own, as
Qwen3-Next's does, and the second and third tokens of a draft are right more often.
"""

from __future__ import annotations

import torch

from minispec.drafters.mtp import MTPHead
from minispec.load.model import Model

from ..cli import options
from . import arguments
from .corpus import Corpus
from .eagle import copy_neurons, learn, store
from .lessons import Lessons, split_rows

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


def add_arguments(parser) -> None:
    arguments.add_training(parser, 4000, 1.2e-3)
    options.add(parser, "mlp", options.count, None, "neurons of its layer (default: as many as the target's)")
    drafted = "steps to draft along the text in training: 1 is DeepSeek-V3's way"
    options.add(parser, "unroll", options.count, UNROLL, drafted)
    arguments.add_keep(parser, bits=False)


def run(args, target: Model) -> None:
    learnt, unseen = split_rows(Corpus.load(*args.corpus))
    head = new_head(target, seed=args.seed, mlp=args.mlp).float()
    lessons = Lessons(target.transformer, learnt, head.hidden_layers, keep=args.keep)
    how = arguments.chosen(args, "steps lr batch_tokens unroll seed stop_after")
    learn(head, lessons, folder=args.out, **how)
    store(head, target, args.out / "model", unseen, UNROLL)
