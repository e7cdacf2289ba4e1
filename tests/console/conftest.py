"""A console for all tests of a process, and a client that is signed in at it."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from testkit.cluster.api import Api
from tests.console.world import EDITOR, VIEWER, Console, running_console, token_of

SignIn = Callable[[str], Awaitable[aiohttp.ClientSession]]


@pytest.fixture(scope="session")
def console(api_server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with running_console(api_server, tmp_path_factory.mktemp("console"), "--poll=1") as made:
        yield made


@pytest.fixture
def viewer(api: Api, namespace: str) -> str:
    """The token of a user who may only read, in one namespace."""
    return token_of(api, namespace, "viewer", VIEWER)


@pytest.fixture
def editor(api: Api, namespace: str) -> str:
    """The token of a user who may patch ModelDeployments too."""
    return token_of(api, namespace, "editor", EDITOR)


async def signed_in(stack: contextlib.AsyncExitStack, console: Console, token: str) -> aiohttp.ClientSession:
    """A client with a session, which sends the Origin of the console, as a browser does."""
    # aiohttp's jar sends no Secure cookie to localhost, as browsers do: it is sent by hand.
    client = await stack.enter_async_context(
        aiohttp.ClientSession(console.url, headers={"Origin": console.url}, cookie_jar=aiohttp.DummyCookieJar())
    )
    async with client.post("/sign-in", data={"token": token}, allow_redirects=False) as answer:
        assert answer.status == 303, await answer.text()
        client.headers["Cookie"] = answer.headers["Set-Cookie"].partition(";")[0]
    return client


@pytest.fixture
async def sign_in(console: Console) -> AsyncIterator[SignIn]:
    """Opens a session for a token."""
    async with contextlib.AsyncExitStack() as stack:
        yield lambda token: signed_in(stack, console, token)
