"""The crate's own generated inputs, for ten minutes each: `plane/tests/generated.rs`."""

import runpy
import subprocess

import pytest

from testkit import ROOT
from tests.plane.native import needs_plane

TARGETS = (
    "a_plain_head_is_one_that_cannot_be_read_in_two_ways",
    "an_aligner_loses_no_byte_and_hands_on_whole_events",
    "an_aligner_takes_any_bytes_and_holds_few",
    "chunks_are_read_as_a_simple_reader_reads_them_in_pieces_of_any_size",
    "chunks_that_were_written_are_read_again",
    "fields_of_any_bytes_are_read_or_left",
)
SECONDS = 600


@needs_plane
@pytest.mark.extended
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("target", TARGETS)
def test_generated_bytes_for_ten_minutes(target: str) -> None:
    cargo = runpy.run_path(str(ROOT / "plane" / "build.py"))["find_cargo"]()
    if cargo is None:
        pytest.skip("no cargo works here")
    command = [cargo.path, "test", "--locked", "--no-default-features", "--test", "generated", "--", "--exact", target]
    environment = cargo.environment | {"PLANE_FUZZ_S": str(SECONDS)}
    done = subprocess.run(command, cwd=ROOT / "plane", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed" in done.stdout
