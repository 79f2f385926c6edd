"""Train EAGLE's head with training-time test: let it draft along the text, and correct every step of the draft.

Drafts start at all positions t of a row at once. Step j of each reads the true token x_{t+1+j} and the head's own
feature of step j − 1 (step 0: the target's), and learns what the target says at position t + 1 + j. It sees what
it will see when it drafts: the true entries up to t, and its own steps since. A head that was taught on true features
alone would be lost at the second step, where it has none.

loss = Σ_j 0.8^j · CE(p_{t+1+j}, step j at t) / Σ_j 0.8^j, over positions where a reply token is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from minispec.drafters.eagle import EagleHead, Form
from minispec.load.model import Model
from minispec.model import MLP, RMSNorm

from ..cli import options
from . import arguments
from .corpus import Corpus
from .draft import largest_neurons
from .lessons import Batch, Lessons, frequent_tokens, go_on, split_rows
from .loop import fit

DECAY = 0.8
UNROLL = 5
FORMS = {"ours": Form(), "eagle3": Form.eagle3(), "eagle3.1": Form.eagle3(stream_norm="each", norm_output=True)}


@torch.no_grad()
def new_head(target: Model, head_ids: Tensor, *, seed: int = 0, **options) -> EagleHead:
    """A head to start from: g is the target's highest stream, the layer its last layer, all but deaf to the embedding.

    So at first it says what the target said one token earlier, in the language that the LM head understands.
    """
    head, last = EagleHead(target, head_ids, **options), target.transformer.layers[-1]
    d, generator = head.config.hidden_size, torch.Generator().manual_seed(seed)
    for weight in head.parameters():
        if weight is not head.head:
            weight.copy_(0.01 * torch.randn(weight.shape, generator=generator))  # faint: it only breaks symmetries
    head.fc.weight[:, -d:] += torch.eye(d, device=target.device)
    head.embed_norm.weight.fill_(1.0)
    for norm in [] if head.stream_norms is None else head.stream_norms.modules():
        if isinstance(norm, RMSNorm):
            norm.weight.fill_(1.0)
    head.feature_norm.load_state_dict(last.input_layernorm.state_dict())
    head.mlp_norm.load_state_dict(last.post_attention_layernorm.state_dict())
    head.norm.load_state_dict(target.transformer.norm.state_dict())
    given = last.self_attn.state_dict()
    for name, weight in head.self_attn.state_dict().items():
        wide = name in ("q_proj.weight", "k_proj.weight", "v_proj.weight")  # [·, 2d]: embedding, feature
        (weight[:, d:] if wide else weight).copy_(given[name])
    for layer in head.more:
        for part in ("input_layernorm", "self_attn", "post_attention_layernorm"):
            getattr(layer, part).load_state_dict(getattr(last, part).state_dict())
        layer.self_attn.o_proj.weight.mul_(0.1)  # the same layer again adds little at first
    for mlp in (head.mlp, *(layer.mlp for layer in head.more)):
        copy_neurons(getattr(last.mlp, "experts", [last.mlp])[0], mlp)  # of a mixture, any expert is a start
    return head


def copy_neurons(given: MLP, mlp: MLP) -> None:
    """As many as there is room for, those with the largest weights; neurons beyond them say nothing yet."""
    state = given.state_dict()
    kept = largest_neurons(given, min(given.gate_proj.out_features, mlp.gate_proj.out_features))
    for name, weight in mlp.state_dict().items():
        if name == "down_proj.bias":
            weight.copy_(state[name])
        elif name == "down_proj.weight":
            weight.zero_()[:, : len(kept)] = state[name][:, kept]
        else:
            weight[: len(kept)] = state[name][kept]


class Unrolled:
    """What every step of every draft sees, without a cache: see `attend`."""

    def __init__(self, layers: int, width: int, groups: int, device):
        self.steps: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(layers)]  # keys and values of each step
        future = torch.ones(width, width, dtype=torch.bool, device=device).triu(1)
        self.future = future.repeat(groups, 1)  # [G·T, T], True where a key is later than the query's start

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The draft that starts at t sees step 0 of all starts up to t, and of the later steps only its own.

        So beside the usual scores [T, T] there is one number a start for each step of its own, and the softmax runs
        over both together.
        """
        (B, H, T, D), Hkv = q.shape, k.shape[1]
        self.steps[layer].append((k, v))
        (true_k, true_v), *own = self.steps[layer]
        q = q.reshape(B, Hkv, H // Hkv * T, D) * D**-0.5  # query heads of one key/value head are just more queries
        scores = [(q @ true_k.mT).masked_fill(self.future, -torch.inf)]  # [B, Hkv, G·T, T]
        for k, _ in own:
            scores.append((q.unflatten(2, (-1, T)) * k[:, :, None]).sum(-1).flatten(2)[..., None])  # [B, Hkv, G·T, 1]
        weights = torch.cat(scores, -1).softmax(-1)
        o = weights[..., :T] @ true_v  # [B, Hkv, G·T, D]
        for i, (_, v) in enumerate(own):
            o = o + (weights[..., T + i, None].unflatten(2, (-1, T)) * v[:, :, None]).flatten(2, 3)
        return o.reshape(B, H, T, D)


def unroll(head: EagleHead, tokens: Tensor, streams: Sequence[Tensor], steps: int) -> Iterator[Tensor]:
    """Features of step 0, 1, … of the drafts from all positions of rows [n, w] at once, [n, w, d] each.

    Step j at position t speaks of token t + 2 + j; near the end of a row, where that lies outside, it means nothing.
    """
    w = tokens.shape[1]
    memory = Unrolled(head.config.num_layers, w, head.config.num_heads // head.config.num_kv_heads, tokens.device)
    position = torch.arange(w, device=tokens.device)[None]  # [1, w]
    feature = head.fuse(streams)
    for j in range(steps):
        feature = head(tokens.roll(-1 - j, 1), feature, head.rope(position + j), memory.attend)
        yield feature


def eagle_loss(head: EagleHead, lessons: Lessons, batch: Batch, steps: int = UNROLL) -> Tensor:
    """Σ_j 0.8^j · soft cross-entropy of step j, as a weighted mean."""
    answers = batch.answers
    row, place = batch.asked.nonzero(as_tuple=True)  # m positions of the target where a reply token is predicted
    with torch.no_grad():  # [m, v], sums to less than one: the tail is missing
        p = lessons.probs(answers.states[row, place], answers.log_z[row, place], head.head_ids)
        mass = p.sum(-1)
    loss = torch.zeros((), device=p.device)
    for j, feature in enumerate(unroll(head, batch.tokens, [answers.hidden[n] for n in head.hidden_layers], steps)):
        start = place - 1 - j  # where the draft that predicts it at step j began
        logits = head.logits(feature[row, start.clamp(min=0)]).float()  # [m, v]
        cross_entropy = mass * logits.logsumexp(-1) - (p * logits).sum(-1)  # −Σ p log q
        real = start >= 0
        loss = loss + DECAY**j * (cross_entropy * real).sum() / real.sum().clamp(min=1)
    return loss / sum(DECAY**j for j in range(steps))


@torch.no_grad()
def calibrate(target: Model, head: EagleHead, corpus: Corpus, steps: int = UNROLL) -> list[float]:
    """accuracy[j]: how often step j of a greedy draft along the text is the target's own choice."""
    lessons = Lessons(target.transformer, corpus, head.hidden_layers, keep=False)
    hits, tries = (torch.zeros(steps, dtype=torch.float64, device=target.device) for _ in range(2))
    for batch in lessons.in_order(16_384):
        answers = batch.answers
        row, place = batch.asked.nonzero(as_tuple=True)  # [m]
        best = target.transformer.lm_head(answers.states[row, place]).argmax(-1)
        streams = [answers.hidden[n] for n in head.hidden_layers]
        for j, feature in enumerate(unroll(head, batch.tokens, streams, steps)):
            start = place - 1 - j
            drafted = head.head_ids[head.logits(feature[row, start.clamp(min=0)]).argmax(-1)]
            hits[j] += ((drafted == best) & (start >= 0)).sum()
            tries[j] += (start >= 0).sum()
    return (hits / tries.clamp(min=1)).tolist()


def learn(
    head: nn.Module, lessons: Lessons, *, unroll: int, lr=1.2e-3, batch_tokens: int = 20_000, seed: int = 0, **options
) -> list[dict]:
    """Train a head that drafts along the text, EAGLE's or an MTP module; the curve of its loss. `options`: of `fit`."""

    def loss_at(step: int) -> Tensor:
        return eagle_loss(head, lessons, lessons.batch(step, seed, batch_tokens), unroll)

    curve = fit(head, loss_at, lr=lr, **options)
    head.requires_grad_(False).eval()
    return curve


def store(head: nn.Module, target: Model, folder: Path, unseen: Corpus, steps: int) -> None:
    """Save a head with the accuracy of what is stored: 8 bits, the target's dtype."""
    head.save(target, folder)
    head.accuracy = calibrate(target, type(head).load(target, folder), unseen, steps)
    head.save(target, folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"saved {folder}: {size / 1e6:.1f} MB")
    print("right at step 1, 2, …, given that all before was: " + "  ".join(f"{a:.3f}" for a in head.accuracy))


def add_arguments(parser) -> None:
    arguments.add_training(parser, 4000, 1.2e-3)
    forms = "ours has a path of the token around attention; eagle3 and eagle3.1 are as published (default: ours)"
    parser.add_argument("--form", choices=FORMS, help=forms)
    options.add(parser, "layers", options.count, None, "decoder layers of the head (default: 1)")
    options.add(parser, "mlp", options.count, None, "neurons of each layer's MLP (default: as many as the target's)")
    arguments.add_head_vocab(parser)
    parser.add_argument("--own-head", action="store_true", default=None, help="also train a copy of the LM head's rows")
    arguments.add_start(parser)
    options.add(parser, "unroll", options.count, UNROLL, "steps to draft along the text in training")
    arguments.add_keep(parser)


def run(args, target: Model) -> None:
    if args.start and args.form:
        raise ValueError(f"--form {args.form}: the head in --start {args.start} has its own; leave one of them out")
    corpus = Corpus.load(*args.corpus)
    learnt, unseen = split_rows(corpus)
    shape = arguments.chosen(args, "layers mlp own_head")
    if args.start:
        head = EagleHead.load(target, args.start)
        go_on(head, args.start, head.shape, shape | {"head_vocab": args.head_vocab})
    else:
        V, form = target.config.vocab_size, FORMS[args.form or "ours"]
        ids = frequent_tokens(corpus, V, min(args.head_vocab or 8192, V), always=sorted(target.end_tokens))
        given = {name: value for name, value in shape.items() if value is not None}
        head = new_head(target, ids, seed=args.seed, form=form, **given).float()
    lessons = Lessons(target.transformer, learnt, head.hidden_layers, **arguments.chosen(args, "keep keep_bits"))
    how = arguments.chosen(args, "steps lr batch_tokens unroll seed stop_after")
    learn(head, lessons, folder=args.out, **how)
    store(head, target, args.out / "model", unseen, args.unroll)
