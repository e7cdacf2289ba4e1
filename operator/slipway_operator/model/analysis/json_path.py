"""The part of kubectl's JSONPath that selects a value: `{$.data.items[0]['the name']}`, and `[*]` for a whole list.

Not a library: those for Python follow RFC 9535. There `{$.data.ok}`, as Argo's users write it, is a syntax error, and a
missing part is an empty list, so `{$.data.none}` would have a result. Here it is an error, as in Argo and kubectl.
"""

import re
from typing import Any

LONGEST = 512

_STEP = re.compile(r"""\.([A-Za-z_][\w-]*)|\[(-?\d{1,9})\]|\[(\*)\]|\['([^']*)'\]|\["([^"]*)"\]""")


class InvalidPath(ValueError):
    """The path is invalid."""


class PathNotFound(LookupError):
    """The JSON value has nothing at the path."""


def check(path: str) -> None:
    """Parse a path without a value.

    Raises:
        InvalidPath: when it is invalid; the message is for its author.
    """
    _steps(path)


def pick(path: str, value: Any) -> Any:
    """Return the part of a JSON value that a path selects; an empty path selects the whole value.

    Raises:
        InvalidPath: when the path is invalid.
        PathNotFound: when the value has no such part.
    """
    return _picked(_steps(path), value, path)


def _steps(path: str) -> list[str | int | None]:
    """The steps of a path: fields as strings, list indexes as integers, None for `[*]`."""
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    text = text.removeprefix("$")
    if len(path) > LONGEST:
        raise InvalidPath(f"a jsonPath has at most {LONGEST} characters, this one {len(path)}")
    steps: list[str | int | None] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise InvalidPath(
                f"jsonPath {path!r} cannot be read from {text[at:]!r} on: write for example {{$.data[0].ok}}"
            )
        steps.append(_step(match))
        at = match.end()
    return steps


def _step(match: re.Match[str]) -> str | int | None:
    if match[3]:
        return None
    return int(match[2]) if match[2] else next((text for text in match.group(1, 4, 5) if text is not None), "")


def _picked(steps: list[str | int | None], value: Any, path: str) -> Any:
    for index, step in enumerate(steps):
        if step is None:
            if not isinstance(value, list):
                raise PathNotFound(f"jsonPath {path}: there is no list where [*] stands")
            return [_picked(steps[index + 1 :], item, path) for item in value]
        if not _has(value, step):
            raise PathNotFound(f"jsonPath {path}: the answer has no {step!r} there")
        value = value[step]
    return value


def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value)
