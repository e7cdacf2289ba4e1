"""What is read of a fetcher's page, and what of a page that something else sends in its place."""

import pytest

from slipway_operator.fetching.page import LARGEST_BYTES, parse
from slipway_operator.model.cluster.observed import PodDownload

DONE, SIZE = "slipway_fetch_downloaded_bytes", "slipway_fetch_size_bytes"
SPEED, WAITING = "slipway_fetch_speed_bytes_per_second", "slipway_fetch_waiting"
REST = f"{SPEED} 25\n{WAITING} 0\n"
PAGE = f"# HELP {DONE} Bytes.\n# TYPE {DONE} gauge\n{DONE} 430\n{SIZE} 1000\n{REST}"


def test_a_page_and_one_without_a_size() -> None:
    assert parse(PAGE.encode()) == PodDownload(430, 1000, 25, False)
    assert parse(f"{DONE} 430\n{SPEED} 25\n{WAITING} 1\n".encode()) == PodDownload(430, None, 25, True)


@pytest.mark.parametrize(
    "number", ["NaN", "-1", "+1", "1e400", "Inf", "4.3", "0x10", "1_000", "", " 1", "\u0663", "9" * 17, "1" * 4000]
)
@pytest.mark.parametrize("name", [DONE, SPEED, WAITING])
def test_only_plain_integers_are_numbers(name: str, number: str) -> None:
    lines = {DONE: "430", SPEED: "25", WAITING: "0"} | {name: number}
    assert parse("".join(f"{key} {value}\n" for key, value in lines.items()).encode()) is None


def test_a_size_that_is_no_number_is_unknown() -> None:
    found = parse(f"{DONE} 430\n{SIZE} 1e400\n{REST}".encode())
    assert found == PodDownload(430, None, 25, False)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\xff" * 100,
        b"<html>",
        PAGE.encode() + f"{DONE} 1\n".encode(),
        PAGE.replace("\n", "\r").encode(),
        PAGE.encode() + b"\n" * LARGEST_BYTES,
        f"{DONE} 430\n{SIZE} 1000\n".encode(),
    ],
)
def test_anything_else_is_no_page(page: bytes) -> None:
    assert parse(page) is None


def test_numbers_are_within_bounds() -> None:
    found = parse(f"{DONE} {10**16 - 1}\n{SIZE} {10**16 - 2}\n{SPEED} {10**16 - 1}\n{WAITING} 7\n".encode())
    assert found == PodDownload(1 << 50, 1 << 50, 1 << 50, False)
    assert parse(f"{DONE} 5\n{SIZE} 4\n{REST}".encode()) == PodDownload(4, 4, 25, False)
    assert parse(f"{DONE} 5\n{SIZE} 0\n{REST}".encode()) == PodDownload(5, None, 25, False)
