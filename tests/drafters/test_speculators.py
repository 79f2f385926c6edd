"""Heads against code that nobody here wrote: speculators computes the same logits, from our folders and from its own.

speculators is no dependency. It is compared where it is installed (0.9.0, beside our torch and transformers).
"""

import warnings
from dataclasses import replace

import pytest
import torch
from by_hand import blank_logits, head_logits

pytest.importorskip(
    "speculators", reason="speculators is not installed here (pip install --no-deps speculators==0.9.0)"
)

from speculators import SpeculatorModel
from speculators.models.attention import create_float_mask

from minispec.drafters import DFlash, DFlash2, DFlash2Head, DSparkHead
from minispec.drafters.dflash import DFlashHead
from minispec.drafters.eagle import EagleHead, Form
from minispec.load.folder import export_model
from minispec.load.heads_dflash import write_dflash
from minispec.load.heads_eagle import write_eagle
from minispec.sequence import Sequence

CLOSE = 1e-4  # float32
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
STEPS = 4

EAGLES = {
    "eagle3": dict(form=Form.eagle3()),
    "3.1": dict(form=Form.eagle3(stream_norm="each", norm_output=True)),
    "norm before residual": dict(form=Form.eagle3(norm_before_residual=True)),
    "one norm for all streams": dict(form=Form.eagle3(stream_norm="joint", norm_before_residual=True)),
    "whole vocabulary": dict(form=Form.eagle3(), vocab=64),
    "one key/value head, Qwen3": dict(form=Form.eagle3(), kv=1, qk_norm=True),
    "two layers": dict(form=Form.eagle3(norm_output=True), layers=2),
}


@pytest.fixture(scope="module")
def places(make_model, tmp_path_factory):
    """Targets of every shape, and where speculators finds them."""
    made = {}

    def place(**shape):
        key = tuple(sorted(shape.items()))
        if key not in made:
            target = make_model(num_layers=6, dtype=torch.float32, **shape)
            made[key] = target, str(export_model(target, tmp_path_factory.mktemp("target")))
        return made[key]

    return place


def shake(module: torch.nn.Module, seed: int = 0) -> None:
    """Random weights, gains near one."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(1 + 0.2 * noise if "norm" in name else noise / weight.shape[-1] ** 0.5)
    module.requires_grad_(False).eval()


def loaded(folder) -> SpeculatorModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SpeculatorModel.from_pretrained(str(folder))
    # By default attention is flex_attention, made for lengths that are multiples of 128 and a compiler.
    model._attn_impl, model._create_mask_fn = "eager", create_float_mask
    model.config.transformer_layer_config._attn_implementation = "eager"
    return model.float().eval()


def streams_of(target, tokens, layers):
    hidden = target.transformer.body(torch.tensor([tokens]), hidden_layers=layers)[1]
    return [hidden[n] for n in layers]  # [1, T, d] each


# ---------------------------------------------------------------- EAGLE-3


@torch.inference_mode()
def our_steps(target, head, tokens) -> dict[tuple[int, int], torch.Tensor]:
    """Logits of step s of the draft that starts at t, along the text: with a cache, step by step."""
    found, streams = {}, streams_of(target, tokens, head.hidden_layers)
    for t in range(len(tokens) - 1):
        follow = tokens[t + 2 : min(t + 1 + STEPS, len(tokens))]
        logits = head_logits(head, [h[:, : t + 1] for h in streams], tokens[: t + 2], follow)
        found |= {(step, t): logits[step] for step in range(len(logits))}
    return found


@torch.inference_mode()
def their_steps(model, target, head, tokens) -> list[torch.Tensor]:
    """The same from speculators' training forward, which drafts from every position at once: [T, v] of each step."""
    seen = []
    hook = model.lm_head.register_forward_hook(lambda module, given, logits: seen.append(logits[0].float()))
    streams = streams_of(target, tokens, head.hidden_layers)
    shifted = torch.tensor([tokens[1:]])
    model(torch.cat(streams, -1)[:, :-1], shifted, torch.zeros_like(shifted), ttt_steps=STEPS)
    hook.remove()
    return seen


def assert_same_steps(model, target, head) -> None:
    ours, theirs = our_steps(target, head, TEXT), their_steps(model, target, head, TEXT)
    assert len(theirs) == STEPS and len({step for step, _ in ours}) == STEPS
    worst = max((logits - theirs[step][t]).abs().max().item() for (step, t), logits in ours.items())
    assert worst <= CLOSE
    spread = torch.stack([logits for (_, t), logits in ours.items()]).std().item()
    assert spread > 0.1  # logits that are all alike would agree with anything


def new_eagle(place, form, vocab=40, kv=2, layers=1, qk_norm=False):
    target, verifier = place(num_kv_heads=kv, num_heads=4, qk_norm=qk_norm)
    ids = torch.arange(64) if vocab == 64 else torch.randperm(64, generator=torch.Generator().manual_seed(1))[:vocab]
    head = EagleHead(target, ids.sort().values, (2, 3, 5), layers, 48, own_head=True, form=form)
    shake(head)
    return target, verifier, head


@pytest.mark.parametrize("name", EAGLES)
def test_eagle_logits_agree(places, tmp_path, name):
    """From the folder that we write, and from the one that speculators writes after reading it."""
    target, verifier, head = new_eagle(places, **EAGLES[name])
    model = loaded(write_eagle(head, target, tmp_path / "ours", verifier))
    model.save_pretrained(tmp_path / "theirs")
    for each in (head, EagleHead.load(target, tmp_path / "ours"), EagleHead.load(target, tmp_path / "theirs")):
        assert torch.equal(each.head_ids, head.head_ids)
        assert_same_steps(model, target, each)


# ---------------------------------------------------------------- DFlash

DFLASHES = {
    "two layers": dict(),
    "draft vocabulary": dict(vocab=40),
    "the target's rows for some tokens": dict(vocab=40, own_head=False),
    "one stream, long block": dict(streams=(3,), block=7),
}


def new_dflash(place, vocab=64, kv=2, layers=2, streams=(2, 3, 5), block=4, own_head=True, kind=DFlashHead, **more):
    target, verifier = place(num_kv_heads=kv, num_heads=4, qk_norm=True)
    config = replace(target.config, num_layers=layers, intermediate_size=48)
    head = kind(config, torch.arange(vocab), streams, block, own_head and vocab != 64, True, **more)
    shake(head)
    head.blank_is(60, target.transformer)
    return target, verifier, head


@torch.inference_mode()
def assert_same_blocks(model, target, head) -> tuple[torch.Tensor, torch.Tensor]:
    """The block after every beginning of the text: ours as the drafter computes it. Gives back states and logits."""
    n, block = len(TEXT), head.block
    mask = torch.zeros(1, n, dtype=torch.bool)
    mask[0, 1 : n - block] = True  # anchors: each has something before it
    anchors = mask[0].nonzero()[:, 0].tolist()
    streams = streams_of(target, TEXT, head.hidden_layers)
    last = target.transformer.body(torch.tensor([TEXT]))[0]
    given = torch.cat(streams, -1), torch.tensor([TEXT]), mask, last, torch.zeros(1, n, dtype=torch.long)
    states, logits, *_ = model._backbone_forward(*given, max_anchors=len(anchors))
    theirs = logits[0].float().view(len(anchors), block, -1)[:, head.first :]
    for row, anchor in enumerate(anchors):
        hidden = {m: h[0, :anchor] for m, h in zip(head.hidden_layers, streams, strict=True)}
        context = Sequence(row, TEXT[: anchor + 1], None, None, [hidden])
        ours = blank_logits(DFlash(target, head), [context])[0]
        assert (ours - theirs[row]).abs().max().item() <= CLOSE
        assert ours.std().item() > 0.1
    return states.view(len(anchors), block, -1)[:, head.first :], theirs


@pytest.mark.parametrize("name", DFLASHES)
def test_dflash_logits_agree(places, tmp_path, name):
    target, verifier, head = new_dflash(places, **DFLASHES[name])
    model = loaded(write_dflash(head, target, tmp_path / "ours", verifier))
    model.save_pretrained(tmp_path / "theirs")
    for each in (head, DFlashHead.load(target, tmp_path / "ours"), DFlashHead.load(target, tmp_path / "theirs")):
        assert_same_blocks(model, target, each)


# ---------------------------------------------------------------- DFlash 2 and DSpark

PAIRS = {
    "dflash2": dict(kind=DFlash2Head, neurons=24),
    "dflash2, convolved": dict(kind=DFlash2Head, taps=2, group=8, top=5),
    "dspark": dict(kind=DSparkHead, neurons=24, vocab=40),
    "dspark, vanilla, from the anchor": dict(kind=DSparkHead, gate="none", first=0),
}


@pytest.mark.parametrize("name", PAIRS)
@torch.inference_mode()
def test_pair_scores_agree(places, tmp_path, name):
    """Blocks, biases, confidences and the candidates of every path: from our folder, and from theirs."""
    target, verifier, head = new_dflash(places, rank=6, **PAIRS[name])
    model = loaded(write_dflash(head, target, tmp_path / "ours", verifier))
    model.save_pretrained(tmp_path / "theirs")
    for each in (head, type(head).load(target, tmp_path / "ours"), type(head).load(target, tmp_path / "theirs")):
        h, logits = assert_same_blocks(model, target, each)
        before = torch.randint(64, h.shape[:2], generator=torch.Generator().manual_seed(1))
        codes = each.pairs.before(before, target.transformer.embed_tokens.weight)
        after = each.pairs.after(torch.arange(len(each.head_ids)), each.head_rows(target.transformer))
        ours = each.pairs.gated(codes, h) @ after.T
        if head.kind == "dspark":
            theirs = model.markov_head.block_bias(prev_token_ids=before, hidden_states=h)
            sure = torch.cat([h, model.markov_head.prev_embeddings(before)], -1)
            ours = torch.cat([ours, each.confidence(torch.cat([h, codes], -1))], -1)
            theirs = torch.cat([theirs, model.confidence_head(sure)[..., None]], -1)
        else:
            best, theirs = model.candidate_selector.select(logits, h, before)
            ours = (logits + ours).gather(-1, best)
            tokens, log_q = DFlash2(target, each, nodes=9).fillings(logits, h, before[:, 0])(0, None, None)
            assert torch.equal(tokens[:, 0], best[:, 0])  # log q differs from a score by what normalises it
            assert ((log_q[:, 0] - theirs[:, 0]).std(-1) <= CLOSE).all()
        assert (ours - theirs).abs().max().item() <= CLOSE and ours.std().item() > 0.1
