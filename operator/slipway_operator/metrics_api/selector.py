"""Parses label selectors from queries of the API; pure.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

import re
from collections.abc import Callable, Mapping

Labels = Mapping[str, str]
Matches = Callable[[Labels], bool]

_LONGEST, _MOST = 4096, 32
_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_PARTS = re.compile(r",(?![^()]*\))")
_EQUALS = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_IN = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")


class BadSelector(ValueError):
    """The selector is invalid; the message names the part."""


def parse(text: str) -> Matches:
    """Parse a label selector to a predicate of labels; an empty selector matches all.

    Raises:
        BadSelector: when a part of it cannot be read.
    """
    if len(text) > _LONGEST:
        raise BadSelector(f"the selector has more than {_LONGEST} characters")
    parts = [part.strip() for part in _PARTS.split(text)] if text.strip() else []
    if len(parts) > _MOST:
        raise BadSelector(f"the selector has more than {_MOST} requirements")
    required = [_requirement(part) for part in parts]
    return lambda labels: all(one(labels) for one in required)


def _requirement(part: str) -> Matches:
    if match := _EQUALS.fullmatch(part):
        key, operator, value = match.groups()
        return _one_of(key, {value}, wanted=operator != "!=")
    if match := _IN.fullmatch(part):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        return _one_of(key, values, wanted=operator == "in")
    if match := _EXISTS.fullmatch(part):
        absent, key = bool(match[1]), match[2]
        return lambda labels: (key in labels) is not absent
    raise BadSelector(f"the selector cannot be read at {part[:64]!r}")


def _one_of(key: str, values: set[str], *, wanted: bool) -> Matches:
    """Return a predicate on the value of one label; `!=` and `notin` also match objects without the label."""
    return lambda labels: (key in labels and labels[key] in values) is wanted
