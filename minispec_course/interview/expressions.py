"""Numbers: computed from formulas.py and arithmetic, and read from what somebody typed."""

import ast
import operator
import re

from minispec import theory

from .. import formulas

NAMES = {
    name: value
    for name, value in vars(formulas).items()
    if not name.startswith("_")
    and (getattr(value, "__module__", "") in (theory.__name__, formulas.__name__) or isinstance(value, theory.Hardware))
    and not isinstance(value, type)
}
ATTRIBUTES = {"bandwidth", "flops", "linear", "pairs"}
ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
ARITHMETIC |= {ast.Mod: operator.mod, ast.Pow: lambda a, b: float(a) ** float(b)}  # floats never fill the memory


def evaluate(expression: str) -> float:
    """The number an expression stands for: arithmetic on the names of formulas.py, as in "speedup(0.7, 4, c=0.1)".

    Walked node by node, never handed to Python's eval: a bank may come from anywhere.
    """
    try:
        return _number(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, TypeError, ArithmeticError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"{expression!r}: {error}") from None


def _value(node: ast.AST):
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return node.value
    if isinstance(node, ast.Name) and node.id in NAMES:
        return NAMES[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return ARITHMETIC[type(node.op)](_number(_value(node.left)), _number(_value(node.right)))
    if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
        return getattr(_value(node.value), node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        return _value(node.value)[node.slice.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and all(word.arg for word in node.keywords):
        options = {word.arg: _value(word.value) for word in node.keywords}
        return _value(node.func)(*map(_value, node.args), **options)
    raise ValueError(f"{ast.unparse(node)!r} may not be used: numbers, arithmetic and the names of formulas.py only")


def _number(value) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a number")
    return value


def last_digit(value: float) -> float:
    """One unit of the last digit written: 0.01 for 2.77, 1 for 188."""
    _, _, decimals = repr(value).partition(".")
    return 10.0 ** -len(decimals) if decimals not in ("", "0") else 1.0


SCALES = {  # unit → (what it measures, how much)
    **{unit: ("bytes", 1000.0**i) for i, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: ("bytes", 1024.0**i) for i, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
    **{"µs": ("time", 1e-6), "us": ("time", 1e-6), "ms": ("time", 1e-3), "s": ("time", 1.0)},
    **{"k": ("", 1e3), "thousand": ("", 1e3), "million": ("", 1e6), "billion": ("", 1e9), "b": ("", 1e9)},
}
TYPED = re.compile(r"(?:[≈~=]|about|roughly)?\s*(.+?)\s*([%×]|[a-zµ][a-zµ/ ]*)?")
SIGNS = {"−": "-", "^": "**", r"[×·x](?=\s*[\d(])": "*", r"(?<=\d),(?=\d{3}\b)": "", r"(?<=\d),(?=\d)": "."}


def readings(text: str, unit: str = "") -> list[float]:
    """What a typed number or sum may mean in this unit: "2*80*8*128", "75 %", "0.3 s"; nothing if it is no number."""
    text = text.strip().lower()
    for sign, python in SIGNS.items():
        text = re.sub(re.escape(sign) if len(sign) == 1 else sign, python, text)
    found = TYPED.fullmatch(text)
    try:
        value = float(evaluate(found[1] if found else ""))
    except ValueError:
        return []
    given, unit = (found[2] or "").split(" ")[0], unit.lower()
    if unit == "%":
        return [value, 100 * value] if given != "%" and abs(value) <= 1 else [value]
    if given == "%":
        return [value / 100]
    (kind, much), (wanted, one) = SCALES.get(given, ("none", 1.0)), SCALES.get(unit, ("", 1.0))
    if given == unit or kind != wanted or 0.9 < much / one < 1.1:  # many say GB for GiB
        return [value]
    return [value * much / one]
