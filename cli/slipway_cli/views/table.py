"""Tables as kubectl prints them; pure."""

from collections.abc import Iterable, Sequence

from slipway_cli.api import Json

_GAP = "   "


def format_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as they need to be, the last one without padding."""
    cells = [[name.upper() for name in columns], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return [_GAP.join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def format_server_table(table: Json, with_namespace: bool) -> list[str]:
    """The lines of a meta.k8s.io Table, with the columns of `-o wide`; [] when it is empty."""
    rows = table.get("rows") or ()
    if not rows:
        return []
    names = [column["name"] for column in table["columnDefinitions"]]
    if not with_namespace:
        return format_table(names, (row["cells"] for row in rows))
    spaces = (row["object"]["metadata"]["namespace"] for row in rows)
    return format_table(
        ["namespace", *names], ([space, *row["cells"]] for space, row in zip(spaces, rows, strict=True))
    )


def _cell(value: object) -> str:
    text = "" if value is None else " ".join(str(value).split())
    # Others wrote it, and a terminal obeys control characters.
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in text)
