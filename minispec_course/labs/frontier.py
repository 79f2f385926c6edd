"""Lesson 15's experiments: one budget for two sequences, prefixes of a draft, a mixture of experts."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from types import SimpleNamespace

import torch
from torch import Tensor

from minispec import exact, theory, verify
from minispec.drafters.base import Drafter
from minispec.experts import Experts, Mixture, counting
from minispec.load.handle import Model
from minispec.model import Linear
from minispec.processors.prefix import Processors
from minispec.sampling import Sampling, SamplingParams
from minispec.serving.budget import allocate, survival
from minispec.speculate import speculate
from minispec.theory import H200, Hardware, roofline_time
from minispec.tree import Draft

# ---- one budget -----------------------------------------------------------------------------------------------------

TARGETS = torch.tensor([[0.4, 0.6], [0.7, 0.3]], dtype=torch.float64)  # p of the two sequences, whatever came before
DRAFTS = torch.tensor([[0.8, 0.2], [0.45, 0.55]], dtype=torch.float64)  # q of the first draft token
AFTER = torch.tensor([[0.95, 0.05], [0.5, 0.5]], dtype=torch.float64)  # and of the second, after token 0 or token 1


def first_tokens(confidence: Callable[[Tensor, int], float], budget: Callable[[Sequence], int]) -> dict:
    """The exact joint distribution of the first token of both sequences. Each drafts two tokens; confidence(q, d) says
    what a draft token is worth, and budget(worth of all) how many are verified."""

    def step(random) -> tuple[int, ...]:
        drafts, worth = [], []
        for start in DRAFTS:
            tokens, q = exact.propose_chain(
                lambda context, start=start: AFTER[context[0]] if context else start, (), 2, random
            )
            worth.append([confidence(*pair) for pair in zip(q, tokens, strict=True)])
            drafts.append(Draft(list(tokens), q))
        first: tuple[int, ...] = ()
        for p, draft in zip(TARGETS, allocate(drafts, worth, budget(worth)), strict=True):
            n = len(draft.tokens)
            numbers = [random() for _ in range(n + 1)]
            verdict = verify.chain(p.expand(n + 1, -1), draft.probs if n else None, draft.tokens, numbers)
            first += verdict.run(draft.tokens)[:1]
        return first

    return exact.exact_distribution(step)


def bias(confidence: Callable[[Tensor, int], float], budget: Callable[[Sequence], int]) -> float:
    """How far that is from plain decoding, in total variation. 0 to the last digits: exact."""
    plain = {(a, b): float(TARGETS[0, a] * TARGETS[1, b]) for a in (0, 1) for b in (0, 1)}
    return exact.total_variation(first_tokens(confidence, budget), plain)


def best_two(worth: Sequence[Sequence[float]]) -> float:
    """What the best two draft tokens of all are worth together: their probabilities to survive, added up."""
    return sum(sorted(probability for row in worth for probability in survival(row))[-2:])


# ---- prefixes -------------------------------------------------------------------------------------------------------

TOKENS, END = 5, 4  # a vocabulary of five tokens, of which the last is the end
PLAIN = Sampling(temperature=1.0)
TOY = SimpleNamespace(
    name="toy", tokenizer=None, end_tokens=frozenset({END}), config=SimpleNamespace(vocab_size=TOKENS)
)
P = torch.tensor([0.34, 0.26, 0.2, 0.12, 0.08], dtype=torch.float64)
Q = torch.tensor([0.22, 0.34, 0.12, 0.24, 0.08], dtype=torch.float64)
PENALTY = dict(frequency_penalty=1.0)
CHOICES = dict(choices=[(0, 1, 2), (0, 2), (1, 0), (1, 1, 3), (2,)])


def toy_logits(probs: torch.Tensor, output: Sequence[int]) -> torch.Tensor:
    """A toy model: the same probabilities after every output, turned by what it holds."""
    return probs.roll(sum(token + 1 for token in output)).log()


def cycle(
    processors: Processors,
    output: tuple[int, ...],
    random,
    *,
    own_prefix=True,
    processed_draft=True,
    honest_q=True,
    cut=False,
) -> tuple[int, ...]:
    """One cycle with a draft of two tokens, and a switch for each way to get it wrong."""
    drafted, qs = (), []
    for _ in range(2):
        raw = toy_logits(Q, output + drafted)[None]
        made = processors(raw, [output + drafted], guessed=True) if processed_draft else raw
        drafted += (verify.pick(PLAIN.probs(made)[0], random()),)
        qs.append(PLAIN.probs(made if honest_q else raw)[0])
    if cut:  # leave out what the constraint forbids, sampled or not
        drafted = drafted[: len(processors.possible(output, drafted, [-1, 0]))]
    prefixes = [output + drafted[:i] for i in range(len(drafted) + 1)]
    logits = torch.stack([toy_logits(P, prefix) for prefix in prefixes])
    p = PLAIN.probs(processors(logits, prefixes if own_prefix else [output] * len(prefixes)))
    q = torch.stack(qs[: len(drafted)]) if drafted else None
    return verify.chain(p, q, drafted, [random() for _ in p]).run(drafted)


def experiment(options: dict, tokens: int = 2, **switches) -> tuple[float, float]:
    """How far outputs of two tokens are from plain decoding's (total variation), and the tokens per first cycle."""
    processors = Processors(SamplingParams(**options), TOY, [0])

    def ended(output):  # plain decoding stops there: what follows does not count
        return output[: output.index(END) + 1] if END in output else output

    def plain(output):
        return plain_next(processors, output)

    def speculative(output):
        return exact.exact_distribution(lambda random: cycle(processors, output, random, **switches))

    found, right = (exact.joint_distribution(step, tokens) for step in (speculative, plain))
    outputs = [{}, {}]
    for kept, joint in zip(outputs, (found, right), strict=True):
        for output, probability in joint.items():
            kept[ended(output)] = kept.get(ended(output), 0.0) + probability
    length = sum(probability * len(run) for run, probability in speculative(()).items())
    return exact.total_variation(*outputs), length


def plain_next(processors: Processors, output: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    p = PLAIN.probs(processors(toy_logits(P, output)[None], [output]))[0]
    return {(x,): float(px) for x, px in enumerate(p) if px > 0}


WAYS = {
    "frequency penalty": {
        "every position by its own prefix": (PENALTY, {}),
        "the same, and the draft is not penalised": (PENALTY, dict(processed_draft=False)),
        "wrong: one prefix for the whole draft": (PENALTY, dict(own_prefix=False)),
    },
    "constraint": {
        "draft and target are masked": (CHOICES, {}),
        "only the target is masked": (CHOICES, dict(processed_draft=False)),
        "wrong: sampled tokens left out if forbidden": (CHOICES, dict(processed_draft=False, cut=True)),
        "wrong: masked draft, q from before the mask": (CHOICES, dict(honest_q=False)),
    },
}


def prefix_errors() -> dict[str, tuple[float, float]]:
    return {
        name: experiment(options, **switches) for ways in WAYS.values() for name, (options, switches) in ways.items()
    }


def prefix_table(errors: dict[str, tuple[float, float]]) -> str:
    lines = [f"{'':46s} two tokens  tokens per cycle"]
    for kind, ways in WAYS.items():
        lines.append(kind)
        for name in ways:
            off, tokens = errors[name]
            lines.append(f"  {name:44s} {'exact' if off < 1e-12 else f'{off:.4f}':>10s}  {tokens:.4f}")
    return "\n".join(lines)


# ---- a mixture of experts -------------------------------------------------------------------------------------------


def upcycle(model: Model, experts: int, per_token: int, seed: int = 0) -> Model:
    """The same model as a mixture of experts: what it emits is unchanged, what it reads is not."""
    generator, config = torch.Generator().manual_seed(seed), model.config
    shape = Experts(experts, per_token, config.intermediate_size)
    transformer = copy.copy(model.transformer)  # a shallow copy: the attention is shared, the layers are our own
    transformer._modules = dict(transformer._modules)
    layers = []
    for layer in model.transformer.layers:
        sparse = copy.copy(layer)
        sparse._modules = dict(layer._modules)
        router = Linear(config.hidden_size, experts, bias=False).requires_grad_(False)
        noise = torch.randn(experts, config.hidden_size, generator=generator) / config.hidden_size**0.5
        router.weight.copy_(noise)
        sparse.mlp = Mixture(shape, router.to(model.device, model.dtype), [layer.mlp] * experts)
        layers.append(sparse)
    transformer.layers = torch.nn.ModuleList(layers)
    transformer.config = replace(config, experts=shape)
    return Model(
        f"{model.name}, {experts} experts", transformer, model.tokenizer, model.end_tokens, model.chat_template
    )


@torch.inference_mode()
def touched_by(model: Model, ids: Sequence[int], tokens: int) -> float:
    """How many experts of a layer passes over so many tokens touch, on average: counted along a text."""
    cache = model.transformer.new_cache(1, len(ids))
    with counting(model.transformer) as passes:
        for part in torch.tensor([ids[: len(ids) // tokens * tokens]]).split(tokens, dim=1):
            model.transformer(part, cache)
    return mean(len(layer) for one in passes for layer in one)


def touched_while_speculating(model: Model, prompt: str, drafter: Drafter, k: int, count: int = 60) -> tuple:
    """One greedy run: its output, and how many experts of a layer a verify pass touched on average."""
    with counting(model.transformer) as passes:
        out = speculate(model, prompt, drafter, k=k, max_new_tokens=count)  # the first pass is the prefill
    return out, mean(len(layer) for one in passes[1:] for layer in one)


def pass_seconds(
    tokens: int, experts: int, per_token: int, always: float, expert: float, hardware: Hardware = H200
) -> float:
    """A pass in bfloat16 on a roofline: it reads the weights that its tokens touch, and computes with those of each
    token. Short contexts: the KV cache is left out. A dense model is a mixture with one expert."""
    read = always + theory.experts_touched(experts, per_token, tokens) * expert
    return roofline_time(2 * read, 2 * tokens * (always + per_token * expert), hardware)


def draft_cost(draft: float, batch: int = 1, hardware: Hardware = H200, **shape) -> float:
    """c: a pass of a dense draft model of so many parameters, over a plain pass of the target, for the same batch."""
    return pass_seconds(batch, 1, 1, draft / 2, draft / 2, hardware) / pass_seconds(batch, **shape, hardware=hardware)


def best_length(
    alpha: float, draft: float, batch: int = 1, longest: int = 64, hardware: Hardware = H200, **shape
) -> tuple[int, float, float]:
    """The best k for a batch, with a dense draft model of so many parameters: k, v there, and the speedup. k = 0: no
    draft is worth its time."""
    plain, c = pass_seconds(batch, **shape, hardware=hardware), draft_cost(draft, batch, hardware, **shape)

    def v(k: int) -> float:
        return pass_seconds(batch * (k + 1), **shape, hardware=hardware) / plain

    k = theory.best_k(alpha, c, v, longest)
    return k, v(k), theory.best_speedup(alpha, c, v, longest)
