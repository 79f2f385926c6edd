"""Distil a draft: a few layers that put their probability where the target puts it.

What speculation pays for is Σ min(p, q), the overlap of the draft's q with the target's p. Soft cross-entropy
−Σ p log q learns fast and pulls q towards p everywhere; a last phase adds the total variation 1 − Σ min(p, q) itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from minispec.load.folder import load_folder, save_folder
from minispec.load.model import Model
from minispec.model import MLP, Transformer
from minispec.recurrent import DeltaRule

from ..cli import options
from . import arguments
from .corpus import Corpus
from .lessons import Lessons, frequent_tokens
from .loop import fit


def largest_neurons(mlp: MLP, count: int) -> Tensor:
    """The neurons of an MLP that can say most: those with the largest weights, in and out."""
    gate, up, down = mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight  # [m, d], [m, d], [d, m]
    return (gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)).topk(count).indices


def draft_from(target: Transformer, layers: Sequence[int], head_ids: Tensor, mlp: int | None = None) -> Transformer:
    """A draft made of some of the target's layers, its frozen embedding and the chosen rows of its head.

    With `mlp`, only that many neurons of each layer's MLP are kept, those with the largest weights: for the same
    number of parameters a draft may then have more layers.
    """
    mlp = mlp or target.config.intermediate_size
    config = dataclasses.replace(target.config, num_layers=len(layers), head_vocab=len(head_ids), intermediate_size=mlp)
    draft = Transformer(config).to(target.device)
    draft.embed_tokens.weight = torch.nn.Parameter(target.embed_tokens.weight.detach().float(), requires_grad=False)
    for mine, index in zip(draft.layers, layers, strict=True):
        state, kept = target.layers[index].state_dict(), largest_neurons(target.layers[index].mlp, mlp)
        for key in [key for key in state if key.startswith(("mlp.gate", "mlp.up"))]:
            state[key] = state[key][kept]
        state["mlp.down_proj.weight"] = state["mlp.down_proj.weight"][:, kept]
        mine.load_state_dict(state)
    draft.norm.load_state_dict(target.norm.state_dict())
    with torch.no_grad():
        draft.lm_head.weight.copy_(target.lm_head.weight[head_ids.to(target.device)])
        draft.head_ids.copy_(head_ids)
    return draft


def hybrid_like(small: Transformer, recurrent: Sequence[int]) -> Transformer:
    """A new hybrid as wide as a trained model, with its embedding: these layers are recurrent, and no later ones."""
    c, size = small.config, (small.config.num_heads, small.config.head_dim)
    config = dataclasses.replace(c, num_layers=max(recurrent) + 2, qk_norm=True, out_gate=True)
    delta = DeltaRule(tuple(recurrent), size[0], size[0], size[1], size[1])
    hybrid = Transformer(dataclasses.replace(config, delta=delta)).to(small.device)
    hybrid.embed_tokens.load_state_dict(small.embed_tokens.state_dict())
    return hybrid


def widen(draft: Transformer, target: Transformer, head_ids: Tensor) -> Transformer:
    """The draft with more tokens to propose, `head_ids` in ascending order, its own among them.

    A new token's row of the head is the target's, taken by the linear map that brings the target's rows of the old
    tokens as close as can be to the draft's: by training, the two heads have moved apart.
    """
    mine, head_ids = draft.lm_head.weight.detach(), head_ids.to(draft.device)
    theirs = target.lm_head.weight.detach().to(mine.dtype)
    rows = theirs[head_ids] @ (torch.linalg.pinv(theirs[draft.head_ids]) @ mine)  # [v, d]
    rows[torch.searchsorted(head_ids, draft.head_ids)] = mine
    wide = Transformer(dataclasses.replace(draft.config, head_vocab=len(head_ids))).to(draft.device, draft.dtype)
    wide.load_state_dict(draft.state_dict() | {"lm_head.weight": rows, "head_ids": head_ids})
    return wide


def distill(
    target: Transformer,
    draft: Transformer,
    corpus: Corpus,
    *,
    steps: int,
    lr: float = 1.2e-3,
    batch_tokens: int = 18_000,
    seed: int = 0,
    **options,
) -> list[dict]:
    """Teach the draft the target's distributions on the corpus. In the second half the overlap itself counts."""
    lessons = Lessons(target, corpus)
    draft.train()

    def loss_at(step: int) -> Tensor:
        batch = lessons.batch(step, seed, batch_tokens)
        asked, answers = batch.asked, batch.answers
        with torch.no_grad():  # [m, v], sums to less than one: the tail is missing
            p = lessons.probs(answers.states[asked], answers.log_z[asked], draft.head_ids)
        logits = draft.lm_head(draft.norm(draft.body(batch.tokens)[0][asked])).float()  # [m, v]
        log_q = logits.log_softmax(-1)
        cross_entropy = -(p * log_q).sum(-1).mean()
        progress = (step / steps - 0.5) / 0.2
        if progress <= 0:
            return cross_entropy
        total_variation = 1 - torch.minimum(p, log_q.exp()).sum(-1).mean()
        blend = min(0.8, progress)
        return (1 - blend) * cross_entropy + blend * 4 * total_variation

    curve = fit(draft, loss_at, steps=steps, lr=lr, **options)
    draft.eval()
    return curve


@torch.no_grad()
def acceptance(target: Model, draft: Model, corpus: Corpus, batch: int = 8) -> dict[str, float]:
    """On text the target wrote: mean Σ min(p, q) at T = 1, and how often both agree on the best token."""
    overlap = agree = count = 0.0
    order = corpus.length.argsort()  # rows of like length share a batch
    for rows in order.split(batch):
        part = corpus[rows]
        tokens = part.tokens[:, : int(part.length.max())].long().to(target.device)
        asked = part.asked(tokens.shape[1]).to(target.device)
        p, q = (m.transformer.head(m.transformer.body(tokens)[0][asked]).float() for m in (target, draft))  # [m, V]
        agree += float((p.argmax(-1) == q.argmax(-1)).sum())
        overlap += float(torch.minimum(p.softmax(-1), q.softmax(-1)).sum())
        count += int(asked.sum())
    return {"acceptance": overlap / count, "greedy_agreement": agree / count, "tokens": int(count)}


def add_arguments(parser) -> None:
    arguments.add_training(parser, 20_000, 1.2e-3, 18_000)
    options.add(parser, "layers", options.natural, [0, 1, 29], "target layers to start from", nargs="+")
    options.add(parser, "mlp", options.count, None, "neurons kept in each layer's MLP (default: all of the target's)")
    arguments.add_head_vocab(parser, "; more than those of --start: its own and the next most frequent ones")
    arguments.add_start(parser)
    options.add(parser, "bits", options.count, 8, "of a stored weight, 2 to 8", choices=range(2, 9))
    options.add(parser, "recurrent", options.natural, None, "a hybrid as wide as --start: which layers", nargs="+")


def run(args, target: Model) -> None:
    corpus, vocab_size = Corpus.load(*args.corpus), target.config.vocab_size
    if args.start:
        draft = load_folder(args.start, device=target.device, dtype=torch.float32).transformer
        draft = hybrid_like(draft, args.recurrent) if args.recurrent else draft
        own = draft.config.head_vocab or vocab_size
        count = args.head_vocab or own
        if count < own:
            raise ValueError(f"head-vocab={count}: the draft of --start proposes {own} tokens, give as many or none")
        if count > own:
            ids = frequent_tokens(corpus, vocab_size, count, always=draft.head_ids.tolist())
            draft = widen(draft, target.transformer, ids)
        draft.requires_grad_(True).embed_tokens.weight.requires_grad_(False)
    else:
        ids = frequent_tokens(corpus, vocab_size, args.head_vocab or 8192, always=sorted(target.end_tokens))
        draft = draft_from(target.transformer, args.layers, ids, args.mlp)
    how = arguments.chosen(args, "steps lr batch_tokens seed stop_after")
    distill(target.transformer, draft, corpus, folder=args.out, **how)
    stored = Model(f"{target.name}-draft", draft, end_tokens=target.end_tokens)
    stored = target.around(draft, f"{target.name}-hybrid") if args.recurrent else stored
    theirs, mine = target.transformer.embed_tokens.weight, draft.embed_tokens.weight
    borrowed = theirs.shape == mine.shape and torch.equal(theirs, mine.to(theirs.dtype))  # else its own, as micro-draft
    save_folder(stored, args.out / "model", bits=args.bits, embeddings_from=target.name if borrowed else None)
    read = sum(p.numel() for p in draft.layers.parameters()) + draft.lm_head.weight.numel()
    share = read / target.num_parameters  # the target's head is its embedding, so every parameter is read
    print(f"saved {args.out / 'model'}: reads {read / 1e6:.1f} M parameters per pass, {share:.3f} of the target's")
