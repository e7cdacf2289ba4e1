"""A provider on a real socket, and an API server's Secrets and Jobs as far as the clients of providers see them."""

import base64

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import SECRETS
from slipway_operator.outbound.addresses import EgressPolicy
from slipway_operator.outbound.dialer import Dialer
from slipway_operator.providers.dispatch import Providers


@pytest.fixture
async def service():
    """An HTTP server that answers with `reply` and keeps the requests."""

    async def take(request):
        service.got.append((request, await request.read()))
        return await service.reply(request)

    async def fine(request):
        return web.json_response({"ok": True})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", take)
    service = TestServer(application)
    service.got, service.reply = [], fine
    async with service:
        yield service


class Secrets:
    """The part of the client that gets Secrets: returns `data` or raises `failure`."""

    def __init__(self):
        self.data, self.labels, self.failure = {}, {}, None

    async def get(self, resource, namespace, name):
        assert (resource, namespace) == (SECRETS, "default")
        if self.failure:
            raise self.failure
        if name not in self.data:
            raise NotFound(f'secrets "{name}" not found')
        encoded = {key: base64.b64encode(value).decode() for key, value in self.data[name].items()}
        return {"metadata": {"name": name, "labels": self.labels}, "data": encoded}


@pytest.fixture
def secrets():
    return Secrets()


@pytest.fixture
def providers(secrets):
    return Providers(secrets, Dialer(EgressPolicy(loopback=True), "analyses"))
