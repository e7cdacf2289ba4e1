"""Where a model runs: named devices that are there, and a sentence for those that are not."""

import pytest

from slipway_server.models.devices import LoadError, pick_device

pytestmark = pytest.mark.integration


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)


@pytest.mark.parametrize(
    ("wanted", "count", "found"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda:0"), ("cpu", 2, "cpu"), ("cuda", 1, "cuda:0"), ("cuda:1", 2, "cuda:1")],
)
def test_devices_are_named_by_their_number(
    monkeypatch: pytest.MonkeyPatch, wanted: str, count: int, found: str
) -> None:
    gpus(monkeypatch, count)
    assert pick_device(wanted) == found


@pytest.mark.parametrize(("wanted", "count", "message"), [("cuda", 0, "no GPU here"), ("cuda:2", 2, "2 of them here")])
def test_a_missing_device_is_refused(monkeypatch: pytest.MonkeyPatch, wanted: str, count: int, message: str) -> None:
    gpus(monkeypatch, count)
    with pytest.raises(LoadError, match=message):
        pick_device(wanted)
