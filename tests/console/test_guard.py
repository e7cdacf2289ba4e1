"""Sign-in, the session's cookie, forms of other pages, and headers, against a real API server."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from devcluster.certificates import Authority
from devcluster.ports import reserve_port
from slipway_console.serving.guard import HEADERS
from slipway_console.serving.sign_in import MOST_SIGN_INS
from testkit.cluster.api import Api
from testkit.until import until_async
from tests.console.conftest import SignIn
from tests.console.world import Console, create_deployment, csrf_of, path, running_console

pytestmark = pytest.mark.integration

HOSTILE = "https://evil.example"


def outside(console: Console, **headers: str) -> aiohttp.ClientSession:
    """A client that is not signed in."""
    return aiohttp.ClientSession(console.url, headers=headers, cookie_jar=aiohttp.DummyCookieJar())


@pytest.mark.parametrize(
    ("token", "status", "sentence"),
    [
        ("", 400, "This is no token"),
        ("a b", 400, "This is no token"),
        ("a\r\nX-Remote-User: admin", 400, "This is no token"),
        ("ey.wrong.token", 401, "does not accept this token"),
        ("x" * 40_000, 413, "This page does not exist, or not in this way (413"),
    ],
    ids=["empty", "spaces", "lines", "wrong", "long"],
)
async def test_what_is_no_token_opens_no_session(console: Console, token: str, status: int, sentence: str) -> None:
    async with (
        outside(console, Origin=console.url) as client,
        client.post("/sign-in", data={"token": token}) as answer,
    ):
        assert (answer.status, "Set-Cookie" in answer.headers) == (status, False)
        assert sentence in await answer.text()


async def test_the_cookie_is_for_this_host_and_no_script(console: Console, viewer: str) -> None:
    form = {"token": f" Bearer {viewer}\n"}
    async with (
        outside(console, Origin=console.url) as client,
        client.post("/sign-in", data=form, allow_redirects=False) as answer,
    ):
        name, *attributes = answer.headers["Set-Cookie"].split("; ")
        assert (answer.status, answer.headers["Location"]) == (303, "/deployments")
    assert name.startswith("__Host-slipway-console=") and viewer not in name
    assert {"HttpOnly", "Secure", "SameSite=Strict", "Path=/"} <= set(attributes)
    [age] = [int(one.removeprefix("Max-Age=")) for one in attributes if one.startswith("Max-Age=")]
    assert 3500 < age <= 3600
    log = console.log.read_text()
    assert '"a viewer signed in"' in log and viewer not in log


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://slipway.example", 400), ("https://slipway.example", 303), ("http://127.0.0.1:8040", 303)],
)
async def test_a_browser_that_would_keep_no_cookie_is_refused_with_the_reason(
    console: Console, viewer: str, origin: str, status: int
) -> None:
    host = origin.partition("//")[2]
    async with (
        outside(console, Origin=origin, Host=host) as client,
        client.post("/sign-in", data={"token": viewer}, allow_redirects=False) as answer,
    ):
        assert answer.status == status
        assert ("open the console by HTTPS" in await answer.text()) == (status == 400)


@pytest.mark.attack_class(2)
async def test_without_a_session_every_page_leads_to_the_sign_in(console: Console, namespace: str) -> None:
    async with outside(console) as client:
        for where in ("/", "/deployments", f"/deployments/{namespace}/chat", "/tenants", "/pools", "/nothing"):
            async with client.get(where, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "/sign-in")
        async with client.get("/deployments/stream", allow_redirects=False) as answer:
            assert answer.status == 401
        async with client.get("/sign-in") as answer:
            assert answer.status == 200
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
            assert answer.headers["Cache-Control"] == "no-store"


async def test_after_signing_out_the_cookie_opens_nothing(
    console: Console, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    client = await sign_in(viewer)
    async with client.get(f"/deployments?namespace={namespace}") as answer:
        form = {"csrf": csrf_of(await answer.text())}
    async with client.post("/sign-out", data=form, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/sign-in")
    async with client.get(f"/deployments?namespace={namespace}", allow_redirects=False) as answer:
        assert answer.status == 303


@pytest.mark.attack_class(2)
@pytest.mark.parametrize(
    "origin",
    [{"Origin": HOSTILE}, {"Origin": "null"}, {"Origin": "http://["}, {}, {"Sec-Fetch-Site": "cross-site"}],
    ids=["other", "null", "broken", "none", "cross-site"],
)
async def test_a_form_of_another_page_does_nothing(
    api: Api, console: Console, namespace: str, editor: str, sign_in: SignIn, origin: dict[str, str]
) -> None:
    create_deployment(api, namespace)
    client = await sign_in(editor)
    async with client.get(f"/deployments/{namespace}/chat") as answer:
        form = {"csrf": csrf_of(await answer.text()), "token": "bbbbbbbbbb/1/1"}
    async with (
        outside(console, Cookie=client.headers["Cookie"], **origin) as other,
        other.post(f"/deployments/{namespace}/chat/promote", data=form) as answer,
    ):
        assert answer.status == 403
        assert "not sent from a page of this console" in await answer.text()
    assert "rollout" not in api.get(path(namespace, name="chat")).body["spec"]


@pytest.mark.attack_class(2)
async def test_a_form_without_the_sessions_own_token_does_nothing(
    api: Api, namespace: str, editor: str, viewer: str, sign_in: SignIn
) -> None:
    create_deployment(api, namespace)
    client, other = await sign_in(editor), await sign_in(viewer)
    async with other.get(f"/deployments/{namespace}/chat") as answer:
        of_another = csrf_of(await answer.text())
    for csrf in ("", "x", of_another):
        form = {"csrf": csrf, "token": "bbbbbbbbbb/1/1"}
        async with client.post(f"/deployments/{namespace}/chat/promote", data=form) as answer:
            assert answer.status == 403
            assert "This form is not from this session" in await answer.text()
    assert "rollout" not in api.get(path(namespace, name="chat")).body["spec"]


async def test_an_action_takes_a_form_and_no_link(namespace: str, editor: str, sign_in: SignIn) -> None:
    client = await sign_in(editor)
    async with client.get(f"/deployments/{namespace}/chat/promote") as answer:
        assert answer.status == 405
    async with client.post(f"/deployments/{namespace}/chat/delete", data={}) as answer:
        assert answer.status == 404


async def test_a_token_that_ends_ends_its_session(api: Api, namespace: str, viewer: str, sign_in: SignIn) -> None:
    client = await sign_in(viewer)
    where = f"/deployments?namespace={namespace}"

    async def status_and_text() -> tuple[int, str]:
        async with client.get(where, allow_redirects=False) as answer:
            return answer.status, await answer.text()

    assert api.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/viewer").ok
    # The API server remembers for some seconds which tokens are valid.
    _, text = await until_async(status_and_text, "the token is refused", holds=lambda found: found[0] == 401)
    assert "it is wrong, or it has expired" in text
    assert (await status_and_text())[0] == 303


async def test_without_an_api_server_a_sentence_says_so(api_server: Path, viewer: str, tmp_path: Path) -> None:
    flags = (f"--api-server=https://127.0.0.1:{reserve_port()}", "--api-timeout=2", "--secure-cookie=off")
    with running_console(api_server, tmp_path, *flags) as console:
        async with (
            outside(console, Origin=console.url) as client,
            client.post("/sign-in", data={"token": viewer}) as answer,
        ):
            assert answer.status == 503
            assert "The API server cannot be reached." in await answer.text()


async def test_an_api_server_of_another_authority_gets_no_token(api_server: Path, viewer: str, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other").path("ca.crt")
    with running_console(api_server, tmp_path, f"--api-server-ca-file={other}") as console:
        async with (
            outside(console, Origin=console.url) as client,
            client.post("/sign-in", data={"token": viewer}) as answer,
        ):
            assert answer.status == 503
            assert "The API server cannot be reached." in await answer.text()


async def test_sign_ins_that_never_end_leave_places_to_other_addresses(console: Console, viewer: str) -> None:
    port = int(console.url.rpartition(":")[2])
    head = f"POST /sign-in HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: {console.url}\r\n"
    head += "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntoken="
    open_ones = [
        await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(MOST_SIGN_INS)
    ]
    for _, writer in open_ones:
        writer.write(head.encode())
        await writer.drain()
    refused = [code for code in await asyncio.gather(*(_status(reader) for reader, _ in open_ones)) if code == 429]
    assert len(refused) == MOST_SIGN_INS // 4
    async with (
        outside(console, Origin=console.url) as client,
        client.post("/sign-in", data={"token": viewer}, allow_redirects=False) as answer,
    ):
        assert answer.status == 303
    for _, writer in open_ones:
        writer.close()
        await writer.wait_closed()


async def _status(reader: asyncio.StreamReader) -> int:
    """The status of an answer that comes at once; 0 without one."""
    try:
        async with asyncio.timeout(0.5):
            return int((await reader.readline()).split()[1])
    except TimeoutError:
        return 0


async def test_pages_by_https_with_a_certificate_that_is_read_again(
    api_server: Path, viewer: str, tmp_path: Path
) -> None:
    authority = Authority.create(tmp_path / "pki")
    authority.issue("console", "console", hosts=("localhost",))
    certificate, key = authority.path("console.crt"), authority.path("console.key")
    flags = (f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}")
    trusted = ssl.create_default_context(cafile=str(authority.path("ca.crt")))
    with running_console(api_server, tmp_path, *flags) as console:
        url = console.url.replace("http:", "https:")
        async with (
            aiohttp.ClientSession(headers={"Origin": url}) as client,
            client.post(f"{url}/sign-in", data={"token": viewer}, ssl=trusted, allow_redirects=False) as answer,
        ):
            assert answer.status == 303

        async def shown() -> str:
            where: tuple[str, int] = ("localhost", int(url.rpartition(":")[2]))
            return await asyncio.to_thread(ssl.get_server_certificate, where, ca_certs=str(authority.path("ca.crt")))

        first = await shown()
        authority.issue("console", "console", hosts=("localhost",))
        await until_async(shown, "the renewed certificate", holds=lambda found: found != first)


def test_half_a_certificate_is_named(api_server: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="--tls-cert-file needs --tls-private-key-file"),
        running_console(api_server, tmp_path, "--tls-cert-file=/x"),
    ):
        raise RuntimeError("it has started")
