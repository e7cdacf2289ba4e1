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


@pytest.fixture
async def sign_in(console: Console) -> AsyncIterator[SignIn]:
    """Opens a session for a token; its client sends the Origin of the console, as a browser does."""
    async with contextlib.AsyncExitStack() as stack:

        async def opened(token: str) -> aiohttp.ClientSession:
            # aiohttp's jar sends no Secure cookie to localhost, as browsers do: the test sends it by hand.
            client = await stack.enter_async_context(
                aiohttp.ClientSession(console.url, headers={"Origin": console.url}, cookie_jar=aiohttp.DummyCookieJar())
            )
            async with client.post("/sign-in", data={"token": token}, allow_redirects=False) as answer:
                assert answer.status == 303, await answer.text()
                cookie = answer.headers["Set-Cookie"].partition(";")[0]
            client.headers["Cookie"] = cookie
            return client

        yield opened
