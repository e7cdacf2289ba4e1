"""What a bench ends with: its report in a file, its page for people, its bars on the terminal."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from testkit import ROOT
from testkit.report import Bar, Json, write


def publish(report: Json, made: Sequence[Bar], text: str, page: Path | None, awaited: Collection[str] = ()) -> int:
    """The exit status. `page`: where the text is kept; None: it is printed alone. `awaited`: names of bars that may
    be missed, because what they are about is not there yet."""
    path = write(report)
    print(f"\n{text}", flush=True)
    if page:
        page.write_text(text)
    for bar in made:
        print(bar)
    missed = [bar.bar for bar in made if not bar.ok]
    if early := [name for name in missed if name in awaited]:
        print(f"{len(early)} of the missed bars do not count yet: what they are about is not there")
    print(f"report {path.relative_to(ROOT)}", flush=True)
    return 0 if len(missed) == len(early) else 1


def bars_table(made: Sequence[Bar]) -> str:
    """In Markdown."""
    lines = [[bar.bar, f"{bar.value:g}", bar.limit, "yes" if bar.ok else "**no**"] for bar in made]
    return table(["bar", "value", "limit", "holds"], lines)


def missing_list(not_measured: Mapping[str, str], titles: Mapping[str, str]) -> str:
    """Peers that were not measured, and why."""
    return "\n".join(f"- {titles.get(peer, peer)}: {why}" for peer, why in not_measured.items())


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
