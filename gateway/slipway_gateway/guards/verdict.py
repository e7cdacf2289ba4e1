"""What a guard decides, and what several guards decide together (pure).

All positions are code points of a text, as Python counts them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

ALLOWED, BLOCKED, REDACTED, FAILED, IGNORED = "allow", "block", "redact", "failed", "ignored"
DEFAULT_REPLACEMENT = "[REDACTED]"


@dataclass(frozen=True, slots=True)
class Span:
    """Characters of a text, from `start` up to `end`, and what takes their place."""

    start: int
    end: int
    replacement: str = DEFAULT_REPLACEMENT


Spans = Mapping[str, Sequence[Span]]  # by the path of the text


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of one guard. `spans`: what is redacted; `reason`: why a text is blocked, for its client."""

    action: str = ALLOWED
    reason: str = ""
    spans: Spans = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """What all guards of a stage decide. `guard`: the one that blocks, or that failed and does not let pass."""

    guard: str = ""
    blocked: bool = False
    failed: str = ""  # why that guard failed
    reason: str = ""
    spans: Spans = field(default_factory=dict)

    @property
    def passes(self) -> bool:
        return not self.guard


def joined(verdicts: Iterable[Verdict]) -> dict[str, tuple[Span, ...]]:
    """The spans of several guards, which may overlap, without overlaps."""
    found: dict[str, list[Span]] = {}
    for verdict in verdicts:
        for path, spans in verdict.spans.items():
            found.setdefault(path, []).extend(spans)
    return {path: merged(spans) for path, spans in found.items()}


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in order; those that overlap become one, with the replacement of the first of them."""
    ordered: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.start, one.end)):
        last = ordered[-1] if ordered else None
        if last is not None and span.start < last.end:
            ordered[-1] = Span(last.start, max(last.end, span.end), last.replacement)
        else:
            ordered.append(span)
    return tuple(ordered)


def redacted(text: str, spans: Iterable[Span]) -> str:
    """The text with its spans replaced. `spans`: in order and without overlaps."""
    parts: list[str] = []
    at = 0
    for span in spans:
        parts += (text[at : span.start], span.replacement)
        at = span.end
    return "".join((*parts, text[at:]))
