"""Puts a table between the two lines of a page that are there for it."""

from pathlib import Path

TABLE_BEGINS, TABLE_ENDS = "<!-- table -->", "<!-- end of the table -->"


def put_table(page: Path, table: str) -> None:
    """Replace the table of a page.

    Raises:
        ValueError: when the page has no place for one.
    """
    before, begins, rest = page.read_text().partition(TABLE_BEGINS)
    _, ends, after = rest.partition(TABLE_ENDS)
    if not (begins and ends):
        raise ValueError(f"{page} has no lines {TABLE_BEGINS} and {TABLE_ENDS} to put a table between")
    page.write_text(f"{before}{begins}\n{table}\n{ends}{after}")
