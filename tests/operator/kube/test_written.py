"""Which statuses count as edited by another writer."""

from dataclasses import replace
from typing import Any

from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.kube.writing.written import WrittenStatuses
from slipway_operator.model.deployment.status import render

KEY = ("default", "chat")
FIRST, SECOND = Status(model="chat"), Status(model="chat", message="it serves")


def obj(status: Status, uid: str = "u1") -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "status": render(status)}


def test_what_this_process_wrote_or_may_have_written_is_no_edit() -> None:
    written = WrittenStatuses()
    assert not written.edited(KEY, obj(SECOND), SECOND), "it has written none"
    written.writes(KEY, obj(FIRST), FIRST, SECOND)
    for found in (FIRST, SECOND):  # the write may have failed
        assert not written.edited(KEY, obj(found), found)
    assert not written.edited(KEY, obj(SECOND, "u2"), Status(model="another")), "it is another object"


def test_what_another_wrote_is_named() -> None:
    written = WrittenStatuses()
    written.writes(KEY, obj(FIRST), FIRST, SECOND)
    forged = replace(SECOND, stable_revision="elsewhere0")
    [event] = written.edited(KEY, obj(forged), forged)
    assert event.reason == "StatusEdited" and "changed status.stableRevision: " in event.message
    written.forget(KEY)
    assert not written.edited(KEY, obj(forged), forged)


def test_what_the_api_cuts_is_no_edit() -> None:
    written, long = WrittenStatuses(), replace(SECOND, message="x" * 100_000)
    written.writes(KEY, obj(FIRST), FIRST, long)
    cut = replace(long, message=render(long)["message"])
    assert cut != long and not written.edited(KEY, obj(cut), cut)


def test_a_write_that_did_not_arrive_is_not_put_down_to_another_writer() -> None:
    """The API server refuses it because the other writer came first: only what that one changed is named."""
    written, edited = WrittenStatuses(), replace(FIRST, stable_revision="elsewhere0")
    written.writes(KEY, obj(FIRST), FIRST, replace(SECOND, reason="Serving", weight=5))
    [event] = written.edited(KEY, obj(edited), edited)
    assert event.message.startswith("another writer changed status.stableRevision: ")
