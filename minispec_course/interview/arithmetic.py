"""How a number comes about, as one would write it on a whiteboard: target_work(0.7, 4) becomes 5 / 2.77 = 1.80.

`worked(number)` replaces every formula of theory.py by its arithmetic with the numbers put in. What it says can be
typed into a calculator: a test does that for every number of the bank.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable

from minispec import theory

from .expressions import _value as value_of
from .expressions import evaluate
from .question import Number

SIGNS = {ast.Add: "+", ast.Sub: "−", ast.Mult: "·", ast.Div: "/", ast.Pow: "^"}
BINDS = {ast.Add: 1, ast.Sub: 1, ast.Mult: 2, ast.Div: 2, ast.Pow: 3}


def shown(x: float) -> str:
    """Three figures or more: 0.05, 2.77, 1,840, 16e9."""
    if abs(x) >= 1e6:
        power = min(3 * int(math.log10(abs(x)) // 3), 24)
        return f"{x / 10**power:.5g}e{power}"
    if x == round(x):
        return f"{x:,.0f}"
    return f"{x:,.1f}" if abs(x) >= 100 else f"{x:.3g}" if abs(x) >= 1e-3 else f"{x:.2e}"


def result(x: float) -> str:
    """The end of the line: 1.80, not 1.8, so that one sees how far it was rounded."""
    if x == round(x) or abs(x) >= 1e6:
        return shown(x)
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:#.3g}".rstrip(".")


def _tokens(alpha: float, k: int) -> str:
    if k <= 4:
        return " + ".join(["1", *(f"{shown(alpha)}^{i}" if i > 1 else shown(alpha) for i in range(1, k + 1))])
    return f"(1 − {shown(alpha)}^{k + 1}) / (1 − {shown(alpha)})"


def _by_position(betas) -> str:
    return " + ".join(["1", *(" · ".join(map(shown, betas[: i + 1])) for i in range(len(betas)))])


def _cycle(tokens: float, k: int, c: float, v: float = 1.0) -> str:
    return f"{shown(tokens)} / ({k} · {shown(c)} + {shown(v)})"


def _best(alpha, c, v, longest) -> str:
    """The speed-up at the best k; a list of β is cut there."""
    k = theory.best_k(alpha, c, v, longest)
    betas = [alpha] * k if isinstance(alpha, float) else alpha[:k]
    return _cycle(theory.expected_tokens_by_position(betas), k, c, v) if k else "1"


def _bytes(weights, bytes_per_weight=2, batch=1, context=0, kv_bytes=0) -> str:
    cache = f" + {shown(batch)} · {shown(context)} · {shown(kv_bytes)}" if context and kv_bytes else ""
    return f"{shown(weights)} · {shown(bytes_per_weight)}{cache}"


def _flops(weights, batch=1, tokens=1, context=0, attention_width=0) -> str:
    attention = f" + 4 · {shown(context)} · {shown(attention_width)}" if context and attention_width else ""
    inner = f"2 · {shown(weights)}{attention}"
    return f"{shown(batch * tokens)} · ({inner})" if attention else f"{shown(batch * tokens)} · {inner}"


def _time(hardware, weights, batch=1, tokens=1, context=0, bytes_per_weight=2, kv_bytes=0, attention_width=0) -> str:
    products = theory.pass_bytes(weights, bytes_per_weight, batch), theory.pass_flops(weights, batch, tokens)
    attention = batch * context * kv_bytes, 4 * batch * tokens * context * attention_width
    reading = computing = 0  # what is limited by the bandwidth, and what by the arithmetic
    for read, done in (products, attention):
        if read / hardware.bandwidth >= done / hardware.flops:
            reading += read
        else:
            computing += done
    parts = ((reading, hardware.bandwidth), (computing, hardware.flops))
    return " + ".join(f"{shown(amount)} / {shown(rate)}" for amount, rate in parts if amount)


def _verify(hardware, weights, k, batch=1, **shape) -> str:
    after, before = (theory.pass_time(hardware, weights, batch, n, **shape) for n in (k + 1, 1))
    return f"{shown(1e3 * after)} / {shown(1e3 * before)}"


WORKED: dict[str, Callable[..., str]] = {
    "expected_tokens": _tokens,
    "expected_tokens_by_position": _by_position,
    "token_ceiling": lambda alpha: f"1 / (1 − {shown(alpha)})",
    "accepted_fraction": lambda alpha, k: f"({shown(theory.expected_tokens(alpha, k))} − 1) / {k}",
    "target_work": lambda alpha, k: f"{k + 1} / {shown(theory.expected_tokens(alpha, k))}",
    "wasted_work": lambda alpha, k: f"1 − {shown(theory.expected_tokens(alpha, k))} / {k + 1}",
    "cycle_speedup": _cycle,
    "speedup": lambda alpha, k, c, v=1.0: _cycle(theory.expected_tokens(alpha, k), k, c, v),
    "kv_bytes_per_token": lambda layers, kv_heads, head_dim, bytes_per_value=2: (
        f"2 · {layers} · {kv_heads} · {head_dim} · {shown(bytes_per_value)}"
    ),
    "kv_bytes": lambda batch, length, per_token: f"{shown(batch)} · {shown(length)} · {shown(per_token)}",
    "pass_bytes": _bytes,
    "pass_flops": _flops,
    "pass_time": _time,
    "roofline_time": lambda bytes_read, flops, hardware: (
        f"{shown(bytes_read)} / {shown(hardware.bandwidth)}"
        if bytes_read / hardware.bandwidth >= flops / hardware.flops
        else f"{shown(flops)} / {shown(hardware.flops)}"
    ),
    "verify_cost": _verify,
    "arithmetic_intensity": lambda batch=1, tokens=1, bytes_per_weight=2: (
        f"2 · {batch} · {tokens} / {shown(bytes_per_weight)}"
    ),
    "balance_point": lambda hardware: f"{shown(hardware.flops)} / {shown(hardware.bandwidth)}",
    "acceptance": lambda p, q: " + ".join(shown(min(a, b)) for a, b in zip(p, q, strict=True)),
    "total_variation": lambda p, q: f"1 − ({' + '.join(shown(min(a, b)) for a, b in zip(p, q, strict=True))})",
    "draft_cost": lambda draft_bytes, target_bytes: f"{shown(draft_bytes)} / {shown(target_bytes)}",
    "staged_cost": lambda c, inner_speedup: f"{shown(c)} / {shown(inner_speedup)}",
    "fewer_bytes_speedup": lambda fraction, factor: (
        f"1 / (1 − {shown(fraction)} + {shown(fraction)} / {shown(factor)})"
    ),
    "pipeline_bubble": lambda stages, microbatches: f"{stages - 1} / ({microbatches} + {stages - 1})",
    "contiguous_waste": lambda length, reserved: f"1 − {shown(length)} / {shown(reserved)}",
    "block_waste": lambda length, block=16: f"{shown((block - 1) / 2)} / ({shown(length)} + {shown((block - 1) / 2)})",
    "best_speedup": lambda alpha, c, v=1.0, longest=64: _best(alpha, c, v, longest),
    "free_tokens": lambda hardware, batch=1, bytes_per_weight=2: (
        f"{shown(hardware.flops)} / {shown(hardware.bandwidth)} / {shown(2 * batch / bytes_per_weight)}"
    ),
    "quantized_bytes": lambda weights, bits=8, group=64, bytes_per_scale=2: (
        f"{shown(weights)} · ({bits} / 8 + {shown(bytes_per_scale)} / {group})"
    ),
    "wasted_slots": lambda length, block=16: f"{-(-length // block)} · {block} − {length}",
    "static_batch_idle": lambda lengths: f"1 − {shown(sum(lengths) / len(lengths))} / {max(lengths)}",
    "medusa_parameters": lambda hidden, vocab, heads=5, shared_lm_head=False: (
        f"{heads} · ({hidden}^2 + {hidden}{'' if shared_lm_head else f' + {vocab} · {hidden}'})"
    ),
    "training_flops": lambda parameters, tokens: f"6 · {shown(parameters)} · {shown(tokens)}",
}


def _written(node: ast.AST) -> tuple[str, int]:
    """A piece of an expression as arithmetic, and how tightly it binds (4: a single number)."""
    if isinstance(node, ast.BinOp):
        bind, sign = BINDS[type(node.op)], SIGNS[type(node.op)]
        left, right = _written(node.left), _written(node.right)
        first = left[0] if left[1] >= bind else f"({left[0]})"
        second = right[0] if right[1] > bind or (right[1] == bind and sign in "+·") else f"({right[0]})"
        return f"{first}{sign}{second}" if sign == "^" else f"{first} {sign} {second}", bind
    if isinstance(node, ast.UnaryOp):
        inside, bind = _written(node.operand)
        return f"−{inside}" if bind > 1 else f"−({inside})", 1
    if isinstance(node, ast.Call) and node.func.id in WORKED:
        named = {word.arg: value_of(word.value) for word in node.keywords}
        bound = inspect.signature(getattr(theory, node.func.id)).bind(*map(value_of, node.args), **named)
        shape = bound.arguments.pop("shape", {})
        text = WORKED[node.func.id](**bound.arguments, **shape)
        return text, 1 if "+" in text or "−" in text else 2
    return shown(value_of(node)), 4


def arithmetic(expression: str) -> str:
    """The arithmetic alone, without its result."""
    return _written(ast.parse(expression.strip(), mode="eval").body)[0]


def worked(number: Number) -> str:
    """The arithmetic with its result and unit: "5 / 2.77 = 1.80"."""
    text, value = arithmetic(number.expression), result(evaluate(number.expression))
    unit = f" {number.unit}" if number.unit else ""
    return f"{value}{unit}" if text.replace(",", "") == value.replace(",", "") else f"{text} = {value}{unit}"
