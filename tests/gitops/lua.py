"""Scripts of Argo CD in a real Lua interpreter, with what Argo CD gives them and nothing else.

Argo CD runs scripts of its ConfigMap without Lua's standard libraries: only the base, tables, and times of `os`.
"""

from pathlib import Path
from typing import Any

import pytest

lua51 = pytest.importorskip("lupa.lua51", reason="the package lupa is not installed")

MOST_STEPS = 1_000_000  # Argo CD ends a script after a second
_SANDBOX = """
string, math, io, debug, coroutine, python = nil, nil, nil, nil, nil, nil
getmetatable("").__index = nil
os = { date = os.date, time = os.time, clock = os.clock }
"""


def run(script: Path | str, obj: dict[str, Any]) -> Any:
    """What a script returns for `obj`, as Argo CD reads it: JSON, in which an empty table is an empty list."""
    runtime = lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    limit = runtime.eval("debug.sethook")
    limit(runtime.eval("function() error('the script runs too long') end"), "", MOST_STEPS)
    runtime.execute(_SANDBOX)
    runtime.globals().obj = _table(runtime, obj)
    text = script.read_text() if isinstance(script, Path) else script
    return _json(runtime.execute(text))


def action(script: Path | str, obj: dict[str, Any]) -> dict[str, Any]:
    """The object that an action returns. An empty list in the place of a map is the former map, as Argo CD does it."""
    return _cleaned(run(script, obj), obj)  # type: ignore[no-any-return]


def _table(runtime: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return runtime.table_from({key: _table(runtime, item) for key, item in value.items() if item is not None})
    if isinstance(value, list):
        return runtime.table_from([_table(runtime, item) for item in value])
    return value


def _json(value: Any) -> Any:
    if lua51.lua_type(value) != "table":
        return value
    items = dict(value.items())
    if set(items) == set(range(1, len(items) + 1)):
        return [_json(items[index]) for index in range(1, len(items) + 1)]
    return {key: _json(item) for key, item in items.items()}


def _cleaned(new: Any, old: Any) -> Any:
    if new == [] and isinstance(old, dict):
        return old
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: _cleaned(item, old.get(key)) for key, item in new.items()}
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return [_cleaned(one, other) for one, other in zip(new, old, strict=True)]
    return new
