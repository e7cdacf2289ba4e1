"""The pepper of API keys: made once, restored when it is deleted, never changed."""

import asyncio
import base64
from collections import Counter

import pytest

from slipway_operator.kube.errors import Fenced, Refused
from slipway_operator.kube.secrets import pepper
from slipway_operator.kube.secrets.pepper import Pepper
from testkit.until import until_async

from .test_keys import Server

pytestmark = pytest.mark.attack_class(11)
PLACE = ("sys", "slipway-key-pepper")


def text(server):
    return server.objects[PLACE]["data"]["pepper"]


async def test_a_second_start_keeps_the_pepper():
    server = Server()
    await Pepper(server, *PLACE).look()
    made = text(server)
    assert len(base64.urlsafe_b64decode(base64.b64decode(made))) == 32
    await Pepper(server, *PLACE).look()
    assert text(server) == made


async def test_a_deleted_pepper_is_restored_as_it_was():
    server = Server()
    keeper = Pepper(server, *PLACE)
    await keeper.look()
    made = server.objects.pop(PLACE)["data"]
    await keeper.look()
    assert server.objects[PLACE]["data"] == made


async def test_the_pepper_of_an_administrator_stays():
    server = Server()
    await server.create("secrets", {"metadata": {"namespace": "sys", "name": PLACE[1]}, "data": {"pepper": "bWluZQ=="}})
    keeper = Pepper(server, *PLACE)
    await keeper.look()
    server.objects.pop(PLACE)
    await keeper.look()
    assert text(server) == "bWluZQ=="


async def test_without_the_right_it_says_so():
    server = Server()
    server.failures["get"] = Refused(403, "not allowed")
    with pytest.raises(Refused):
        await Pepper(server, *PLACE).look()


async def test_it_is_there_soon_after_the_lease_is_held(monkeypatch):
    """The task begins before the operator has the lease, and without the Secret no key can be made."""
    monkeypatch.setattr(pepper, "FENCED_PAUSE_S", 0.001)
    server, tries = Server(), Counter()
    fail, server.failures["create"] = server._fail, Fenced("no lease yet")
    monkeypatch.setattr(server, "_fail", lambda verb: (tries.update([verb]), fail(verb)))
    task = asyncio.create_task(Pepper(server, *PLACE).run())
    try:
        await until_async(lambda: tries["create"] >= 2, "it tries again")
        del server.failures["create"]
        await until_async(lambda: PLACE in server.objects, "the Secret is there")
    finally:
        task.cancel()
