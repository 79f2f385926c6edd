"""What it takes to train an EAGLE head for a target, computed before anything is run: parameters, memory, disk, work.

    parameters   those of the head that are trained; with the target's embedding and LM head borrowed, a few percent
    memory       the target, the head with its gradient and AdamW's two moments in float32, what is kept of the target's
                 answers, and the logits of one step: for every step of the unrolled draft one [m, v] in float32,
                 and the target's probabilities beside them. Activations of the layers come on top
    disk         the corpus (token ids in 32 bits) and a checkpoint (head and moments)
    work         floating-point operations in products with weights, 2 per parameter and token forward, 4 backward

Everything but the time is a count, and tests compare it with what training really allocates and computes. The time is
work over a speed that the reader's GPU has to show: `SEEN` is what the head that ships reached.
"""

from __future__ import annotations

from dataclasses import dataclass

from minispec.drafters.eagle import Form
from minispec.model import Config

SEEN = 72e12  # FLOP/s: smollm2-eagle, 7,400 steps in twelve minutes on one H200 in bfloat16, see its card
OURS = Form()


@dataclass(frozen=True)
class Run:
    """A training run of `python -m recipes eagle`: its options by their names, and the size of the corpus."""

    tokens: int  # of the corpus, prompts and replies, padding included
    steps: int = 4000
    batch_tokens: int = 20_000
    asked: float = 1.0  # the share of tokens at which a reply token is predicted
    unroll: int = 5
    layers: int = 1
    mlp: int | None = None
    streams: int = 3
    head_vocab: int = 8192
    own_head: bool = False
    form: Form = OURS
    keep: bool = False
    keep_last: bool = True  # whether the target's last stream is among those that the head is given
    number: int = 2  # bytes of each number of the target


@dataclass(frozen=True)
class Cost:
    parameters: int  # trained
    memory: int  # bytes on the device
    disk: int  # bytes
    work: int  # floating-point operations

    def hours(self, speed: float = SEEN) -> float:
        return self.work / speed / 3600


def target_parameters(c: Config) -> int:
    layer = 2 * c.hidden_size + matrices(c, c.hidden_size, c.intermediate_size) + 2 * c.head_dim * c.qk_norm
    embeddings = c.vocab_size * c.hidden_size * (1 if c.tie_embeddings else 2)
    return c.num_layers * layer + c.hidden_size + embeddings


def matrices(c: Config, inputs: int, mlp: int) -> int:
    """Parameters of one layer's products, whose attention is given `inputs` numbers per token. Biases do not count."""
    heads, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    return inputs * (heads + 2 * kv) + heads * c.hidden_size + 3 * c.hidden_size * mlp


def head_matrices(c: Config, run: Run) -> tuple[int, int]:
    """Parameters of fc, and of all other products of the head apart from its LM head."""
    d, mlp = c.hidden_size, c.intermediate_size if run.mlp is None else run.mlp
    layers = matrices(c, 2 * d, mlp) + (run.layers - 1) * matrices(c, d, mlp)
    return run.streams * d * d, layers + (d * d if run.form.embed_proj else 0)


def head_parameters(c: Config, run: Run) -> int:
    d = c.hidden_size
    norms = 4 + 2 * (run.layers - 1) + (run.streams if run.form.stream_norm in ("each", "joint") else 0)
    of_queries_and_keys = 2 * c.head_dim * run.layers * c.qk_norm
    rows = run.head_vocab * d if run.own_head else 0
    return sum(head_matrices(c, run)) + norms * d + of_queries_and_keys + rows


def kept_bytes(c: Config, run: Run) -> int:
    """What `--keep` holds of the target's answers: streams, the last state if it is not one of them, and log Σ exp."""
    states = run.streams + (not run.keep_last)
    return run.tokens * (states * c.hidden_size * run.number + 4) if run.keep else 0


def eagle(c: Config, run: Run) -> Cost:
    """The costs of this run for a target of this configuration."""
    fc, rest = head_matrices(c, run)
    rows, parameters = run.head_vocab * c.hidden_size, head_parameters(c, run)
    asked = round(run.asked * run.batch_tokens)
    logits = (run.unroll + 1) * asked * run.head_vocab * 4
    # Nobody needs gradients of fc's inputs, unless they are normed with gains, or of rows that are not trained: 4
    # operations per parameter instead of 6.
    gains = run.form.stream_norm in ("each", "joint")
    each = run.batch_tokens * ((6 if gains else 4) * fc + 6 * rest * run.unroll)
    each += asked * rows * (2 + run.unroll * (6 if run.own_head else 4))  # 2: the target's probabilities
    read_by_target = run.tokens if run.keep else run.steps * run.batch_tokens
    embedding = c.vocab_size * c.hidden_size  # is looked up, not multiplied
    of_target = 2 * (target_parameters(c) - (0 if c.tie_embeddings else embedding))
    return Cost(
        parameters,
        target_parameters(c) * run.number + 16 * parameters + kept_bytes(c, run) + logits,
        4 * run.tokens + 12 * parameters,
        run.steps * each + read_by_target * of_target,
    )


def writing_seconds(c: Config, tokens: int, batch: int, bandwidth: float, number: int = 2) -> float:
    """The least time to generate a corpus: every pass reads all weights once and yields a token per sequence."""
    return tokens / batch * target_parameters(c) * number / bandwidth


# ---- examples ----------------------------------------------------------------------------------------------------

TARGETS = {  # the shapes of well-known targets, from their config.json
    "SmolLM2-135M-Instruct": Config(49152, 576, 1536, 30, 9, 3, 64, 8192, tie_embeddings=True),
    "Qwen3-8B": Config(151936, 4096, 12288, 36, 32, 8, 128, 40960, qk_norm=True),
    "Llama-3.1-8B-Instruct": Config(128256, 4096, 14336, 32, 32, 8, 128, 131072),
    "Llama-3.3-70B-Instruct": Config(128256, 8192, 28672, 80, 64, 8, 128, 131072),
}
EXAMPLE = Run(20_000_000, head_vocab=32_000, own_head=True, form=Form.eagle3(stream_norm="each", norm_output=True))


def table(run: Run = EXAMPLE, speeds: tuple[float, ...] = (SEEN, 400e12)) -> str:
    """The costs of one run for all of `TARGETS`, in Markdown."""
    hours = [f"hours at {speed / 1e12:.0f} TFLOP/s" for speed in speeds]
    lines = [
        "| " + " | ".join(["target", "head, parameters", "memory, GB", "disk, GB", *hours]) + " |",
        "|---" * (4 + len(speeds)) + "|",
    ]
    for name, config in TARGETS.items():
        cost = eagle(config, run)
        cells = [name, f"{cost.parameters / 1e6:.0f} M", f"{cost.memory / 1e9:.0f}", f"{cost.disk / 1e9:.1f}"]
        lines.append("| " + " | ".join([*cells, *(f"{cost.hours(speed):.1f}" for speed in speeds)]) + " |")
    return "\n".join(lines)
