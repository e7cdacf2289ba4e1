"""Rows of a generation log for tests, and how they are read."""

import time
from pathlib import Path
from typing import Any

import msgspec

from slipway_gateway.generations.rows import LoggedGeneration
from slipway_gateway.generations.table import Bounds, GenerationTable
from slipway_process.sealing import Keyring
from tests.process.test_sealing import keys_file

DAY_S = 86_400.0
ROOMY = Bounds(DAY_S, 1 << 30)


def keyring(tmp_path: Path, *ids: str) -> Keyring:
    return Keyring(keys_file(tmp_path / f"keys-{'-'.join(ids)}", *ids))


def line(
    number: int, tenant: str = "acme", *, age_s: float = 0.0, input_: bytes | None = b"{}", **changes: Any
) -> bytes:
    """An encoded row."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000+00:00", time.gmtime(time.time() - age_s))
    row = LoggedGeneration(
        f"{number:032x}", at, tenant, "ns/chat", "r1", f"request-{number}", "/v1/chat/completions",
        200, "ok", 0.5, False, 3, 4, 2, 5, "a" * 64, "b" * 64,
    )  # fmt: skip
    row.input = input_
    for name, value in changes.items():
        setattr(row, name, value)
    return msgspec.msgpack.encode(row)


def rows(url: str, keys: Keyring, tenant: str = "") -> list[dict[str, Any]]:
    """All rows of a database, opened."""
    table = GenerationTable(url, keys, ROOMY)
    try:
        return list(table.read(tenant))
    finally:
        table.close()
