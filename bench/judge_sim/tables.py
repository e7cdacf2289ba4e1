"""Tables of the page."""

from collections.abc import Sequence

from testkit.report import Bar


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bar_table(made: Sequence[Bar]) -> str:
    rows = [(bar.bar, f"{bar.value:g}", bar.limit, "yes" if bar.ok else "**no**") for bar in made]
    return table(("bar", "value", "limit", "held"), rows)
