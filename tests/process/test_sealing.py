"""What is stored is encrypted, each value for its row, and a lost key is no silence."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_process import sealing
from slipway_process.sealing import MAGIC, OVERHEAD_BYTES, BrokenSeal, Keyring, SealingKeyLost, UnreadableSeal


def keys_file(path: Path, *ids: str) -> str:
    keys = [{"id": name, "key": base64.b64encode(name.encode().ljust(32, b"k")).decode()} for name in ids]
    path.write_text(json.dumps({"keys": keys}))
    return str(path)


def test_a_value_opens_for_its_row_alone(tmp_path: Path) -> None:
    keyring = Keyring(keys_file(tmp_path / "keys", "2026-11"))
    sealed = keyring.seal(b'{"text":"secret"}', "items\0team-a\x001")
    assert b"secret" not in sealed
    assert len(sealed) == len(b'{"text":"secret"}') + OVERHEAD_BYTES
    assert keyring.open(sealed, "items\0team-a\x001") == b'{"text":"secret"}'
    with pytest.raises(BrokenSeal):
        keyring.open(sealed, "items\0team-b\x001")
    assert keyring.seal(b"", "a") != keyring.seal(b"", "a")


def test_keys_are_rotated_without_a_restart_and_a_lost_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "_LOOK_AGAIN_S", 0.0)
    path = tmp_path / "keys"
    keyring = Keyring(keys_file(path, "old"))
    first = keyring.seal(b"one", "row")
    keys_file(path, "new", "old")
    second = keyring.seal(b"two", "row")
    assert (keyring.open(first, "row"), keyring.open(second, "row")) == (b"one", b"two")
    assert second.startswith(MAGIC + b"new\0")
    keys_file(path, "new")
    with pytest.raises(SealingKeyLost, match="'old'"):
        keyring.open(first, "row")
    # A file that cannot be read changes nothing.
    path.write_text("{")
    assert keyring.open(second, "row") == b"two"


def test_without_keys_values_are_plain_and_sealed_ones_do_not_open(tmp_path: Path) -> None:
    plain, keyring = Keyring(""), Keyring(keys_file(tmp_path / "keys", "k"))
    assert plain.seal(b"{}", "row") == b"{}"
    assert keyring.open(b"{}", "row") == b"{}"  # written before there was a key
    with pytest.raises(SealingKeyLost):
        plain.open(keyring.seal(b"{}", "row"), "row")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"keys": []}',
        '{"keys": [{"id": "k"}]}',
        '{"keys": [{"id": "k", "key": "YQ=="}]}',
        json.dumps({"keys": [{"id": "k k", "key": base64.b64encode(b"k" * 32).decode()}]}),
        '{"keys": [{"id": "k", "key": 7}]}',
    ],
)
def test_a_file_without_valid_keys_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ValueError, match="has no valid keys"):
        Keyring(str(path))


def test_no_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no valid keys"):
        Keyring(str(tmp_path / "none"))


@given(place=st.integers(0, OVERHEAD_BYTES + 4), bit=st.integers(0, 7), cut=st.booleans())
def test_a_changed_value_is_never_returned(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int, cut: bool
) -> None:
    keyring = Keyring(keys_file(tmp_path_factory.getbasetemp() / "keys", "k"))
    sealed = bytearray(keyring.seal(b"hello", "row"))
    if cut:
        changed = bytes(sealed[:place])
    else:
        sealed[place] ^= 1 << bit
        changed = bytes(sealed)
    if changed.startswith(MAGIC):
        with pytest.raises(UnreadableSeal):
            keyring.open(changed, "row")
    else:  # it is no sealed value, and so it is plain
        assert keyring.open(changed, "row") == changed


def test_nonces_differ(tmp_path: Path) -> None:
    keyring = Keyring(keys_file(tmp_path / "keys", "k"))
    assert len({keyring.seal(b"x", "row")[20:32] for _ in range(1000)}) == 1000
