"""The language of successCondition and failureCondition: a condition over `result`, read with Python's own parser.

The operators are those of Argo Rollouts' conditions (which use expr-lang): comparison, arithmetic, `and`/`&&`,
`or`/`||`, `not`/`!`, `in`, indexing, fields of objects, and the functions below. Any other node is refused by name.
Nothing is ever executed as Python: this module walks the syntax tree.

Not a library: Python has none for expr-lang. CEL has neither `len` nor `and`, and `result * 1.5 < 2` is an error in it
when the result is the integer 1. Evaluators of Python expressions (simpleeval, asteval) do not have `&&`, and for them
a comparison with NaN is false: with such a `failureCondition` a canary without data would pass.
"""

import ast
import math
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

LONGEST = 1024
DEEPEST = 40
FUNCTIONS = ("len", "isNaN", "isInf", "default", "asFloat", "asInt")

_WORDS: dict[str, Any] = {"true": True, "false": False, "nil": None, "null": None}
# Strings first, so that their content stays unchanged; then the operators that Python spells differently.
_FOREIGN = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(&&)|(\|\|)|(!(?!=))""")
_PYTHON = ("", " and ", " or ", " not ")
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


class Unclear(ValueError):
    """The condition cannot be parsed, or does not apply to this result."""


class Missing(Unclear):
    """An index or a field that the result does not have."""


class NotANumber(Exception):
    """A comparison with NaN: neither true nor false would be correct."""


def check(text: str) -> None:
    """Parse a condition without a result.

    Raises:
        Unclear: when it cannot be parsed; the message is for its author.
    """
    _walk(_parsed(text), 0)


def holds(text: str, result: Any) -> bool:
    """Whether a condition holds for a result: JSON values, NaN and infinities included.

    Raises:
        Unclear: when it cannot be parsed or applied to this result, or is neither true nor false.
        NotANumber: when it compares NaN; a condition can test for that with `isNaN(result)`.
    """
    value = _value(_parsed(text), result)
    if not isinstance(value, bool):
        raise Unclear(f"{text!r} is {_named(value)}, and must be true or false")
    return value


@lru_cache(maxsize=256)
def _parsed(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise Unclear(f"a condition has at most {LONGEST} characters, this one {len(text)}")
    translated = _FOREIGN.sub(_translated, text.replace("\n", " ")).strip()
    try:
        tree = ast.parse(translated, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unclear(f"{text!r} cannot be read: {getattr(error, 'msg', None) or type(error).__name__}") from error
    _walk(tree, 0)
    return tree


def _translated(match: re.Match[str]) -> str:
    return match[1] or _PYTHON[(match.lastindex or 2) - 1]


def _walk(node: ast.AST, depth: int) -> None:
    """Refuse unknown nodes before any evaluation: also those that a short circuit would skip."""
    if depth > DEEPEST:
        raise Unclear(f"a condition is nested at most {DEEPEST} deep")
    if isinstance(node, ast.expr):
        _meaning(node)
    if isinstance(node, ast.Call):
        for argument in node.args:
            _walk(argument, depth + 1)
        return
    for child in ast.iter_child_nodes(node):
        _walk(child, depth + 1)


def _meaning(node: ast.expr) -> "_Meaning":
    found = _MEANINGS.get(type(node))
    if found is None:
        raise Unclear(f"{ast.unparse(node)!r} is not understood in a condition")
    if isinstance(node, ast.Name) and node.id != "result" and node.id not in _WORDS:
        raise Unclear(f"{node.id!r} is unknown: a condition uses `result`, true, false and nil")
    if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS):
        raise Unclear(f"{ast.unparse(node.func)!r} is none of the functions {', '.join(FUNCTIONS)}")
    if isinstance(node, ast.Call):
        _counted(node)
    return found


def _counted(call: ast.Call) -> None:
    wanted = 2 if ast.unparse(call.func) == "default" else 1
    if len(call.args) != wanted or call.keywords:
        raise Unclear(f"{ast.unparse(call)!r}: it takes {wanted} {'value' if wanted == 1 else 'values'}")


def _value(node: ast.expr, result: Any) -> Any:
    return _meaning(node)(node, result)


# --- what each node means ---------------------------------------------------------------------------------------------


def _constant(node: ast.Constant, result: Any) -> Any:
    if node.value is None or isinstance(node.value, bool | int | float | str):
        return node.value
    raise Unclear(f"{ast.unparse(node)!r} is not understood in a condition")


def _name(node: ast.Name, result: Any) -> Any:
    return result if node.id == "result" else _WORDS[node.id]


def _list(node: ast.List, result: Any) -> list[Any]:
    return [_value(item, result) for item in node.elts]


def _logic(node: ast.BoolOp, result: Any) -> bool:
    """The value of `and` or `or`. It short-circuits, so `len(result) == 0 or result[0] < 1` is safe."""
    ends = isinstance(node.op, ast.Or)
    return ends if any(_truth(item, result) is ends for item in node.values) else not ends


def _unary(node: ast.UnaryOp, result: Any) -> Any:
    if isinstance(node.op, ast.Not):
        return not _truth(node.operand, result)
    if isinstance(node.op, ast.USub):
        value = _value(node.operand, result)
        number = _number(value, node)
        return -value if isinstance(value, int) else -number  # an index of a list stays an integer
    raise Unclear(f"{ast.unparse(node)!r} is not understood in a condition")


def _binary(node: ast.BinOp, result: Any) -> float:
    compute = _ARITHMETIC.get(type(node.op))
    if compute is None:
        raise Unclear(f"{ast.unparse(node)!r} is not understood: there are + - * / and %")
    left, right = (_number(_value(item, result), node) for item in (node.left, node.right))
    try:
        return compute(left, right)
    except ZeroDivisionError as error:
        raise Unclear(f"{ast.unparse(node)!r} divides by zero") from error


def _comparison(node: ast.Compare, result: Any) -> bool:
    left = _value(node.left, result)
    for sign, item in zip(node.ops, node.comparators, strict=True):
        right = _value(item, result)
        if not _compared(sign, left, right, node):
            return False
        left = right
    return True


def _compared(sign: ast.cmpop, left: Any, right: Any, node: ast.expr) -> bool:
    if isinstance(sign, ast.In | ast.NotIn):
        return _contained(left, right, node) is isinstance(sign, ast.In)
    if _is_nan(left) or _is_nan(right):
        raise NotANumber(ast.unparse(node))
    if isinstance(sign, ast.Eq | ast.NotEq):
        return bool(left == right) is isinstance(sign, ast.Eq)
    compare = _COMPARISONS.get(type(sign))
    if compare is None:
        raise Unclear(f"{ast.unparse(node)!r} is not understood in a condition")
    if isinstance(left, str) and isinstance(right, str):
        return compare(left, right)
    return compare(_number(left, node), _number(right, node))


def _contained(item: Any, container: Any, node: ast.expr) -> bool:
    if isinstance(container, list) or (isinstance(container, str | dict) and isinstance(item, str)):
        return item in container
    raise Unclear(f"{ast.unparse(node)!r}: nothing is in {_named(container)}")


def _subscript(node: ast.Subscript, result: Any) -> Any:
    container, place = _value(node.value, result), _value(node.slice, result)
    if isinstance(container, list) and isinstance(place, int) and not isinstance(place, bool):
        if not -len(container) <= place < len(container):
            raise Missing(f"{ast.unparse(node)!r}: there are {len(container)} values")
        return container[place]
    return _field(container, place, node)


def _attribute(node: ast.Attribute, result: Any) -> Any:
    return _field(_value(node.value, result), node.attr, node)


def _field(container: Any, name: Any, node: ast.expr) -> Any:
    if isinstance(container, dict) and isinstance(name, str):
        if name not in container:
            raise Missing(f"{ast.unparse(node)!r}: there is no field {name!r}")
        return container[name]
    raise Unclear(f"{ast.unparse(node)!r}: {_named(container)} has no such part")


def _call(node: ast.Call, result: Any) -> Any:
    assert isinstance(node.func, ast.Name), "what has another meaning was refused"
    name = node.func.id
    if name == "default":
        return _default(node, result)
    value = _value(node.args[0], result)
    if name == "len":
        if not isinstance(value, list | dict | str):
            raise Unclear(f"{ast.unparse(node)!r}: {_named(value)} has no length")
        return len(value)
    number = _number(value, node)
    if name in ("isNaN", "isInf"):
        return math.isnan(number) if name == "isNaN" else math.isinf(number)
    if name == "asInt" and not math.isfinite(number):
        raise Unclear(f"{ast.unparse(node)!r}: {number} is no integer")
    return int(number) if name == "asInt" else number


def _default(node: ast.Call, result: Any) -> Any:
    """Return the first argument of `default`; the second when the first is nil, NaN, an empty list or missing."""
    try:
        found = _value(node.args[0], result)
    except Missing:
        found = None
    absent = found is None or found == [] or _is_nan(found)
    return _value(node.args[1], result) if absent else found


_Meaning = Callable[[Any, Any], Any]
_MEANINGS: dict[type[ast.expr], _Meaning] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.List: _list,
    ast.BoolOp: _logic,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _comparison,
    ast.Subscript: _subscript,
    ast.Attribute: _attribute,
    ast.Call: _call,
}


# --- values -----------------------------------------------------------------------------------------------------------


def _truth(node: ast.expr, result: Any) -> bool:
    value = _value(node, result)
    if not isinstance(value, bool):
        raise Unclear(f"{ast.unparse(node)!r} is {_named(value)}, and must be true or false")
    return value


def _number(value: Any, node: ast.expr) -> float:
    """Return the value as a double, also of a numeric string: JSON often has numbers in quotes. Raises Unclear."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float(value)
    except (ValueError, OverflowError) as error:
        raise Unclear(f"{ast.unparse(node)!r}: {_named(value)} is no number") from error


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _named(value: Any) -> str:
    """Describe a value for a message: its type, and a number's value. A string may be a secret and is not shown."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**18):
        return f"the number {value:.6g}"
    kinds = {list: "a list of values", dict: "an object", str: "a text", int: "a huge number"}
    return kinds.get(type(value), "another value")
