"""Which tenants a server honours (safety 19): those that a gateway proves, for this deployment, now."""

import base64
import json
import os
from pathlib import Path

import pytest

from slipway_contracts.headers import PROOF, TENANT
from slipway_process.serving.errors import HttpError
from slipway_process.serving.tenant import MAX_FILE_BYTES, MAX_PROVED, RELOAD_S, Tenants, sign

pytestmark = [pytest.mark.attack_class(9, 19), pytest.mark.finding(19)]

NOW, KEY, OTHER = 1_800_000_030.0, b"k" * 32, b"o" * 32
WINDOW = int(NOW // 60)
ANNA, BERT = "a" * 32, "b" * 32
CHAT = "team/chat"


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def write(path: Path, **keys: bytes) -> Path:
    """As a kubelet does: in place of the file before, never into it."""
    content = {"keys": [{"id": name, "key": base64.urlsafe_b64encode(key).decode()} for name, key in keys.items()]}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content))
    os.replace(new, path)
    return path


def proved(
    tenant: str = ANNA, *, key: bytes = KEY, key_id: str = "k1", window: int = WINDOW, deployment: str = CHAT
) -> dict[str, str]:
    return {TENANT: tenant, PROOF: f"v1.{key_id}.{window}.{sign(key, tenant, deployment, str(window))}"}


@pytest.fixture
def unproved() -> list[None]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tenants(tmp_path: Path, unproved: list[None], clock: Clock) -> Tenants:
    path = write(tmp_path / "keys.json", k1=KEY)
    return Tenants(str(path), CHAT, unproved=lambda: unproved.append(None), clock=clock)


def test_a_proof_is_valid_more_than_once(tenants: Tenants, unproved: list[None]) -> None:
    assert [tenants.of(proved()) for _ in range(3)] == [ANNA] * 3
    assert tenants.of(proved(BERT)) == BERT
    assert not unproved


FORGED = {
    "no proof": {TENANT: ANNA},
    "an empty one": {TENANT: ANNA, PROOF: ""},
    "nonsense": {TENANT: ANNA, PROOF: "v1.k1.x.y"},
    "bytes": {TENANT: ANNA, PROOF: "\udcff" * 90},
    "another version": {TENANT: ANNA, PROOF: proved()[PROOF].replace("v1", "v2", 1)},
    "a proof of another tenant's": {TENANT: ANNA, PROOF: proved(BERT)[PROOF]},
    "another namespace's key": proved(key=OTHER),
    "another deployment of the namespace": proved(deployment="team/other"),
    "an unknown id": proved(key_id="k2"),
    "a window that was changed": {
        TENANT: ANNA,
        PROOF: proved(window=WINDOW - 60)[PROOF].replace(str(WINDOW - 60), str(WINDOW)),
    },
    "too old": proved(window=WINDOW - 3),
    "of the future": proved(window=WINDOW + 3),
    "a digit more": {TENANT: ANNA, PROOF: proved()[PROOF] + "0"},
    "a line more": {TENANT: ANNA, PROOF: proved()[PROOF] + "\n"},
}


@pytest.mark.parametrize("headers", FORGED.values(), ids=FORGED)
def test_a_forged_tenant_is_ignored_and_counted(
    tenants: Tenants, unproved: list[None], headers: dict[str, str]
) -> None:
    """On the code before a model pod believed whoever reached its port."""
    assert tenants.of(proved()) == ANNA
    assert tenants.of(headers) == ""
    assert len(unproved) == 1


@pytest.mark.parametrize("skew", [-2, -1, 1, 2])
def test_clocks_may_differ_by_two_minutes(tenants: Tenants, skew: int) -> None:
    assert tenants.of(proved(window=WINDOW + skew)) == ANNA


def test_a_proof_that_was_checked_ends_with_its_time(tenants: Tenants, clock: Clock) -> None:
    headers = proved()
    assert tenants.of(headers) == ANNA
    clock.now += 180
    assert tenants.of(headers) == ""


def test_keys_rotate_without_an_unproved_request(
    tenants: Tenants, unproved: list[None], clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    assert tenants.of(proved()) == ANNA
    write(path, k1=KEY, k2=OTHER)
    clock.now += RELOAD_S
    assert tenants.of(proved()) == tenants.of(proved(key=OTHER, key_id="k2")) == ANNA
    write(path, k2=OTHER)
    clock.now += RELOAD_S
    assert tenants.of(proved(key=OTHER, key_id="k2")) == ANNA and not unproved
    assert tenants.of(proved()) == "", "what was checked by a key that is gone counts no more"


@pytest.mark.parametrize("content", ["", "{", '{"keys": [{"id": "k1", "key": "%"}]}', " " * (MAX_FILE_BYTES + 1)])
def test_without_readable_keys_no_tenant_is_accepted(
    tenants: Tenants, clock: Clock, tmp_path: Path, content: str
) -> None:
    assert tenants.of(proved()) == ANNA
    (tmp_path / "keys.json").write_text(content)
    clock.now += RELOAD_S
    assert tenants.of(proved()) == ""
    write(tmp_path / "keys.json", k1=KEY)
    clock.now += RELOAD_S
    assert tenants.of(proved()) == ANNA


def test_a_key_file_that_appears_or_disappears_takes_effect(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "keys.json"
    tenants = Tenants(str(path), CHAT, clock=clock)
    assert tenants.of(proved()) == ""
    write(path, k1=KEY)
    clock.now += RELOAD_S
    assert tenants.of(proved()) == ANNA
    path.unlink()
    clock.now += RELOAD_S
    assert tenants.of(proved()) == ""


def test_the_cache_of_proofs_is_bounded(tenants: Tenants) -> None:
    for number in range(MAX_PROVED + 50):
        assert tenants.of(proved(f"{number:032x}"))
        tenants.of({TENANT: ANNA, PROOF: f"v1.k1.{WINDOW}.{number:064x}"})
    assert len(tenants._proved) == MAX_PROVED


def test_a_server_that_trusts_the_header_needs_no_proof() -> None:
    assert Tenants(trust=True).of({TENANT: ANNA}) == ANNA
    assert Tenants().of({TENANT: ANNA}) == ""


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("given", ["x", "F" * 32, "0" * 31, "0" * 33, "0" * 32 + " "])
def test_nonsense_is_a_400(given: str, trust: bool) -> None:
    with pytest.raises(HttpError) as refused:
        Tenants(trust=trust).of({TENANT: given})
    assert refused.value.status == 400
    assert Tenants(trust=trust).of({}) == ""
