"""Cores and memory as a container sees them."""

from pathlib import Path

import pytest

from slipway_process.machine import cores, free_memory_bytes


@pytest.mark.parametrize(("limit", "expected"), [("150000 100000", 2), ("20000 100000", 1), ("max 100000", None)])
def test_cores_follow_the_quota(tmp_path: Path, limit: str, expected: int | None) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    everything = cores(tmp_path / "nothing")
    assert cores(tmp_path) == min(everything, expected or everything)


def test_memory_follows_the_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert free_memory_bytes(tmp_path, meminfo) == 8000 * 1024
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert free_memory_bytes(tmp_path, meminfo) == 2_000_000
