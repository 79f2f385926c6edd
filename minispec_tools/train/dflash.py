"""Teach a block drafter (drafters/dflash.py) to fill in blanks of the target's own text.

Every row is cut at random places of its reply, the anchors. From each a block goes out: the anchor's token, then
blanks. It sees the target's states strictly before the anchor, and itself. All blocks of a row are read in one pass,
side by side, so one reading of the row by the target teaches many of them.

A wrong token makes all that follow it worthless, so the j-th blank counts exp(−(j − 1) / γ₀).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from minispec.cache import attention, per_query_head
from minispec.drafters.dflash import DFlashHead
from minispec.load.model import Model
from minispec.model import Transformer

from ..cli import options
from . import arguments
from .corpus import Corpus
from .draft import draft_from
from .lessons import Batch, Lessons, frequent_tokens, go_on, split_rows
from .loop import fit
from .narrow import narrow

NARROWS_ON = 200  # rows that show what neurons are worth


def spread(num_layers: int, count: int = 5) -> list[int]:
    """Depths from early to last, evenly spaced: where the drafter reads the target."""
    return sorted({round(1 + i * (num_layers - 1) / max(1, count - 1)) for i in range(count)})


def head_from(
    target: Transformer,
    head_ids: Tensor,
    *,
    layers: Sequence[int] | None = None,
    hidden_layers: Sequence[int] | None = None,
    block: int = 8,
    mlp: int | None = None,
    mask_token: int | None = None,
) -> DFlashHead:
    """A drafter to train, made of some of the target's layers (None: the first and the last one).

    With `mask_token` it has the published form: a blank is the embedding of this token, queries and keys are normed,
    and the context is normed once, after fc.
    """
    layers = [0, target.config.num_layers - 1] if layers is None else layers
    public = mask_token is not None  # published drafters read no stream after the last layer
    hidden_layers = spread(max(1, target.config.num_layers - public)) if hidden_layers is None else hidden_layers
    draft = draft_from(target, layers, head_ids, mlp)
    config = replace(draft.config, head_vocab=None, qk_norm=draft.config.qk_norm or public)
    head = DFlashHead(config, head_ids, hidden_layers, block, False, public)
    head.layers.load_state_dict(draft.layers.state_dict(), strict=draft.config.qk_norm or not public)
    head.norm.load_state_dict(draft.norm.state_dict())
    with torch.no_grad():
        # The context starts as the mean of the streams, and a blank as the mean of all tokens.
        d = target.config.hidden_size
        head.fc.weight.copy_(torch.eye(d).repeat(1, len(head.hidden_layers)) / len(head.hidden_layers))
        if public:
            head.blank_is(mask_token, target)
            gains = torch.stack([layer.input_layernorm.weight for layer in head.layers])
            head.context_norm.weight.copy_(gains.mean(0))  # the layers do not norm it again
        else:
            head.mask.copy_(target.embed_tokens.weight.mean(0))
    return head.to(target.device)


def narrowed(target: Transformer, head: DFlashHead, neurons: int, corpus: Corpus, **options) -> DFlashHead:
    """A trained drafter with fewer neurons in its MLPs, chosen and taught on a corpus to say what all of them said."""
    config = replace(head.config, intermediate_size=neurons)
    small = DFlashHead(config, head.head_ids, head.hidden_layers, head.block, head.lm_head is not None, head.public)
    state = head.state_dict()
    mlps = [layer.mlp for layer in head.layers]
    for i, weights in enumerate(narrow(mlps, neurons, lambda: calibrate(target, head, corpus, **options))):
        state |= {f"layers.{i}.mlp.{name}": weight for name, weight in weights.items()}
    small.load_state_dict(state)
    if head.public:
        small.blank_is(head.mask_token_id, target)
    return small.to(target.device)


@torch.no_grad()
def deepened(target: Transformer, head: DFlashHead, layers: Sequence[int]) -> DFlashHead:
    """A trained drafter with more layers, made of these of the target: they come before its last one.

    What a new layer adds to the stream begins with zero, so that until it learns the drafter does what it did.
    """
    same = dict(hidden_layers=head.hidden_layers, block=head.block, mlp=head.config.intermediate_size)
    new = head_from(target, head.head_ids, layers=layers, mask_token=getattr(head, "mask_token_id", None), **same)
    for layer in new.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    head.config = replace(head.config, num_layers=len(head.layers) + len(layers))
    head.layers = torch.nn.ModuleList([*head.layers[:-1], *new.layers.to(head.dtype), head.layers[-1]])
    return head.requires_grad_(True)


def anchors_in(asked: Tensor, every: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random different anchors among each row's asked places [n, w]: places [n, w // every], and which are real."""
    luck = (1 - torch.rand(asked.shape, generator=generator, device=asked.device)) * asked  # over 0 where asked
    luck, anchors = luck.topk(max(1, asked.shape[1] // every), dim=1)
    return anchors, luck > 0  # a short reply has fewer


def read_blocks(
    head: DFlashHead, target: Transformer, tokens: Tensor, hidden: dict[int, Tensor], anchors: Tensor
) -> Tensor:
    """The block from every anchor [n, A] of rows [n, w], with the target's streams [n, w, d]: states [n, A, B, d]."""
    (n, w), (_, A), B = tokens.shape, anchors.shape, head.block
    place = torch.arange(w, device=tokens.device)
    positions = (anchors[..., None] + torch.arange(B, device=tokens.device)).flatten(1)  # [n, A·B]
    block = torch.arange(A, device=tokens.device).repeat_interleave(B)  # [A·B]: whose place it is
    before = place < anchors.repeat_interleave(B, 1)[..., None]  # [n, A·B, w]
    own = (block[:, None] == block).expand(n, -1, -1)  # [n, A·B, A·B]
    seen = per_query_head(torch.cat([before, own], 2), head.config.num_heads // head.config.num_kv_heads)
    context = head.context(hidden, place[None])

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = context[layer]
        return attention(q, torch.cat([keys, k], 2), torch.cat([values, v], 2), seen)

    return head(target.embed_tokens(tokens.gather(1, anchors)), positions, attend)


def blanks_of(batch: Batch, anchors: Tensor, real: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """For blanks 1 … B − 1 of every block: the place that is asked for the same token, and whether it is one to learn.

    [n, A, B − 1] each. Past the reply's end there is nothing to learn.
    """
    width = batch.tokens.shape[1]
    asking = anchors[..., None] + torch.arange(block - 1, device=anchors.device)
    asking = asking.clamp(max=width - 1)  # the last place is asked for nothing, so it can stand for all behind it
    return asking, real[..., None] & batch.asked.gather(1, asking.flatten(1)).view_as(asking)


def block_loss(head: DFlashHead, lessons: Lessons, batch: Batch, anchors: Tensor, real: Tensor, decay: float) -> Tensor:
    """Σ_j e^{−(j − 1)/γ₀} · cross-entropy at the j-th blank, as a weighted mean over all blanks."""
    asking, learnt = blanks_of(batch, anchors, real, head.block)
    row = torch.arange(len(anchors), device=anchors.device)[:, None, None]
    with torch.no_grad():  # [n, A, B − 1, v]
        p = lessons.probs(batch.answers.states[row, asking], batch.answers.log_z[row, asking], head.head_ids)
    states = read_blocks(head, lessons.target, batch.tokens, batch.answers.hidden, anchors)
    logits = (states[:, :, 1:] @ head.head_rows(lessons.target).T).float()
    cross_entropy = p.sum(-1) * logits.logsumexp(-1) - (p * logits).sum(-1)  # −Σ p log q
    weight = torch.exp(-torch.arange(head.block - 1, device=anchors.device) / decay) * learnt
    return (weight * cross_entropy).sum() / weight.sum()


def train(
    head: torch.nn.Module,
    lessons: Lessons,
    loss: Callable[..., Tensor] = block_loss,
    *,
    batch_tokens: int = 20_000,
    every: int = 6,
    decay: float | None = None,
    seed: int = 0,
    **options,
) -> list[dict]:
    """Teach a drafter, or several with a `loss` of their own, one block for `every` tokens of a row; `decay` is γ₀, by
    default half a block. `options`: of `fit`."""
    decay = min(head.block / 2, 7) if decay is None else decay
    generator = torch.Generator(lessons.target.device)
    head.train()

    def loss_at(step: int) -> Tensor:
        batch = lessons.batch(step, seed, batch_tokens)
        anchors, real = anchors_in(batch.asked, every, generator.manual_seed(seed * 1_000_003 + step))
        return loss(head, lessons, batch, anchors, real, decay)

    curve = fit(head, loss_at, **options)
    head.eval()
    return curve


@torch.no_grad()
def calibrate(
    target: Transformer, head: DFlashHead, corpus: Corpus, every: int = 6, guess: Callable[..., Tensor] | None = None
) -> dict:
    """How often a blank is filled as the target did, given that all before it in the block were. `guess` gives other
    logits than DFlash's: of a drafter, states, the tokens before them and the target.

    The text follows the target's distribution, so this is the chance that the draft token is accepted; the expected
    tokens a pass are 1 + Σ_j (the chance that the first j are right).
    """
    lessons = Lessons(target, corpus, head.hidden_layers, keep=False)
    generator = torch.Generator(target.device).manual_seed(0)
    so_far, hits = (torch.zeros(head.block - 1, device=target.device) for _ in range(2))
    for batch in lessons.in_order(20_000):
        anchors, real = anchors_in(batch.asked, every, generator)
        asking, learnt = blanks_of(batch, anchors, real, head.block)
        states = read_blocks(head, target, batch.tokens, batch.answers.hidden, anchors)[:, :, 1:]
        before, written = (
            x.gather(1, asking.flatten(1)).view_as(asking) for x in (batch.tokens, batch.tokens.roll(-1, 1))
        )
        logits = guess(head, states, before, target) if guess else states @ head.head_rows(target).T  # [n, A, B − 1, v]
        right = (head.head_ids[logits.argmax(-1)] == written) & learnt
        whole = right.cumprod(-1)  # right so far
        before = torch.cat([torch.ones_like(whole[..., :1]), whole[..., :-1]], -1) * learnt
        hits += whole.sum((0, 1))
        so_far += before.sum((0, 1))
    given = (hits / so_far.clamp(min=1)).tolist()
    return {
        "accuracy": [round(a, 4) for a in given],
        "tokens_per_pass": round(1 + float(torch.tensor(given).cumprod(0).sum()), 3),
    }


def store(head: DFlashHead, target: Model, folder: Path, unseen: Corpus, bits: int = 8, **options) -> None:
    """Save a drafter, with what is measured of what was stored. `options`: of `calibrate`."""
    head.save(target, folder, bits)
    measured = calibrate(target.transformer, type(head).load(target, folder), unseen.greedy(), **options)
    head.save(target, folder, bits, **measured)
    print(f"saved {folder}: {(folder / 'model.safetensors').stat().st_size / 1e6:.2f} MB, {measured}", flush=True)


def add_arguments(parser) -> None:
    add = partial(options.add, parser)
    arguments.add_training(parser, 6000, 1e-3)
    add("block", options.count, None, "positions of a block: the last token and the blanks (default: 8)")
    add("layers", options.natural, None, "target layers to start from (default: first and last)", nargs="+")
    neurons = "neurons in each layer's MLP (default: all of the target's)"
    add("mlp", options.count, None, f"{neurons}; of more that --start may have these stay, fitted to the output of all")
    add("hidden-layers", options.natural, None, "depths to read (default: five, evenly spread)", nargs="+")
    arguments.add_head_vocab(parser)
    parser.add_argument("--public", action="store_true", help="the published form, which engines load")
    arguments.add_start(parser, "; without an own head it may get a larger --head-vocab")
    more = "of --start: layers that it gets in addition, made of these of the target"
    add("add-layers", options.natural, [], more, nargs="+")
    add("every", options.count, 6, "one block for so many tokens of a sequence")
    add("decay", options.positive, None, "γ₀: the j-th blank counts exp(−(j − 1) / γ₀) (default: block / 2)", "X")
    arguments.add_keep(parser)
    add("bits", options.count, 8, "of a stored weight, 2 to 8", choices=range(2, 9))


def unused_token(corpus: Corpus, vocab_size: int) -> int:
    """The last token that no row of a corpus has; the last of all, if there is none."""
    unused = (corpus.tokens.flatten().bincount(minlength=vocab_size) == 0).nonzero()
    return int(unused[-1]) if len(unused) else vocab_size - 1


def run(args, target: Model) -> None:
    if args.add_layers and not args.start:
        raise ValueError("--add-layers: without --start give the layers of a new drafter as --layers")
    if args.start and args.public:
        raise ValueError(f"--public: the drafter in --start {args.start} has its own form; leave one of them out")
    learnt, unseen = split_rows(Corpus.load(*args.corpus))
    if args.start:
        head = DFlashHead.load(target, args.start)
        asked = arguments.chosen(args, "block hidden_layers mlp head_vocab")
        asked["layers"] = args.layers and len(args.layers)
        if fewer := args.mlp is not None and args.mlp < head.config.intermediate_size:
            del asked["mlp"]
        if more := head.lm_head is None and (args.head_vocab or 0) > len(head.head_ids):
            del asked["head_vocab"]
        go_on(head, args.start, head.shape, asked)
        if more:
            own, V = head.head_ids.tolist(), target.config.vocab_size
            head.head_ids = frequent_tokens(learnt, V, args.head_vocab, always=own).to(target.device)
        if args.add_layers:
            deepened(target.transformer, head, args.add_layers)
        if fewer:
            head = narrowed(target.transformer, head, args.mlp, learnt[:NARROWS_ON], every=args.every)
    else:
        V = target.config.vocab_size
        ids = frequent_tokens(learnt, V, min(args.head_vocab or 8192, V), always=sorted(target.end_tokens))
        shape = arguments.chosen(args, "layers hidden_layers mlp") | {"block": args.block or 8}
        head = head_from(target.transformer, ids, mask_token=unused_token(learnt, V) if args.public else None, **shape)
    keep = arguments.chosen(args, "keep keep_bits")
    how = arguments.chosen(args, "steps lr every batch_tokens decay seed stop_after")
    train(head, Lessons(target.transformer, learnt, head.hidden_layers, **keep), folder=args.out, **how)
    store(head, target, args.out / "model", unseen, args.bits, every=args.every)
