"""Sign-in at a certified OpenID provider, for a real API server that trusts it for one client."""

import contextlib
import re
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import expect
from yarl import URL

from devcluster.certificates import Authority
from devcluster.controlplane import ControlPlane
from devcluster.ports import reserve_port
from devcluster.processes import dies_with_parent
from testkit.cluster.api import Api
from testkit.until import until
from tests.console import chromium
from tests.console.world import VIEWER, Console, create_deployment, csrf_of, running_console
from tests.support import npm
from tests.support.api_server import install_crds
from tests.support.failing_control_plane import FailingControlPlane

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LOCKED = Path(__file__).with_name("provider")
FLOW = "__Host-slipway-sign-in"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class World:
    """A provider, an API server that trusts it for the client `console`, and consoles at two ports that it leads to."""

    issuer: str
    ca_file: Path
    kubeconfig: Path
    api: Api
    folder: Path
    ports: tuple[int, int]

    @contextlib.contextmanager
    def console(self, client: str, *flags: str, port: int = 1) -> Iterator[Console]:
        folder = self.folder / f"{client}-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        provider = [f"--oidc-issuer={self.issuer}", f"--oidc-client-id={client}", f"--oidc-ca-file={self.ca_file}"]
        public = f"--public-url=http://localhost:{self.ports[port]}"
        with running_console(self.kubeconfig, folder, *provider, public, *flags, port=self.ports[port]) as made:
            yield made

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, port = tmp_path_factory.mktemp("provider"), reserve_port()
    ports = (reserve_port(), reserve_port())
    authority = Authority.create(folder / "authority")
    authority.issue("provider", "provider", hosts=["localhost", "127.0.0.1"])
    issuer, ca_file = f"https://localhost:{port}", authority.path("ca.crt")
    with _provider(folder, authority, port, ports), ControlPlane() as plane:
        failing = FailingControlPlane(plane)
        killed = failing.kill_api_server()
        trusted = ["--oidc-client-id=console", "--oidc-username-claim=sub", "--oidc-username-prefix=oidc:"]
        killed.args = [*killed.args, f"--oidc-issuer-url={issuer}", f"--oidc-ca-file={ca_file}", *trusted]  # type: ignore[misc]
        failing.start_api_server(killed)
        install_crds(plane.kubeconfig)
        api = Api(plane.kubeconfig)
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "oidc:alice"}
        assert api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "viewer"}, "rules": [*VIEWER]}).ok
        binding = {"metadata": {"name": "viewer"}, "roleRef": role, "subjects": [subject]}
        assert api.post(f"{RBAC}/clusterrolebindings", binding).ok
        (folder / "consoles").mkdir()
        yield World(issuer, ca_file, plane.kubeconfig, api, folder / "consoles", ports)
        api.close()


@contextlib.contextmanager
def _provider(folder: Path, authority: Authority, port: int, consoles: tuple[int, int]) -> Iterator[None]:
    log, installed = folder / "provider.log", npm.installed(LOCKED)
    redirects = [f"http://localhost:{one}/sign-in/callback" for one in consoles]
    files = [str(authority.path("provider.crt")), str(authority.path("provider.key"))]
    # Of this tree: the copy in the cache is that of the lock, whichever script was beside it.
    script = installed / "provider.js"
    script.write_text((LOCKED / "provider.js").read_text())
    with log.open("wb") as lines:
        process = subprocess.Popen(
            [str(npm.programs() / "node"), str(script), str(port), *files, *redirects],
            cwd=installed, env=npm.environment(), stdout=lines, stderr=lines, preexec_fn=dies_with_parent(),
        )  # fmt: skip
    try:
        until(lambda: process.poll() is not None or b"listening" in log.read_bytes(), "the provider listens")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def console(world: World) -> Iterator[Console]:
    """The console of the trusted client."""
    with world.console("console", port=0) as made:
        yield made


class User:
    """A browser without scripts: it keeps cookies of both sites, and goes through the provider's own pages."""

    def __init__(self, world: World, console: Console) -> None:
        self.console = console
        self._world, self._client = world, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar())
        self.cookies: dict[str, str] = {}  # of the console: aiohttp sends no Secure cookie to localhost

    async def get(self, where: str) -> tuple[aiohttp.ClientResponse, str]:
        """A page of the console."""
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        url = where if where.startswith("http") else self.console.url + where
        async with self._client.get(URL(url, encoded=True), headers=headers, allow_redirects=False) as answer:
            for line in answer.headers.getall("Set-Cookie", ()):
                name, _, value = line.partition(";")[0].partition("=")
                self.cookies[name] = value.strip('"')
            return answer, await answer.text()

    async def authorized(self, login: str, address: str) -> str:
        """Where the provider sends the browser after its user has signed in there."""
        method, url = "GET", URL(address, encoded=True)
        form: dict[str, str] = {}
        trust = self._world.trust()
        for _ in range(20):
            if str(url).startswith(self.console.url):
                return str(url)
            async with self._client.request(method, url, data=form, ssl=trust, allow_redirects=False) as answer:
                text = await answer.text()
                assert answer.status < 400, text
                method, form = "GET", {}
                if answer.status in (302, 303):
                    url = url.join(URL(answer.headers["Location"], encoded=True))
                    continue
            action = re.search(r'<form[^>]* action="([^"]+)"', text)
            prompt = re.search(r'name="prompt" value="(\w+)"', text)
            assert action and prompt, text
            method, url = "POST", url.join(URL(unescape(action[1])))
            form = {"prompt": prompt[1], "login": login, "password": "x"}
        raise AssertionError("the provider leads nowhere")

    async def sign_in(self, login: str) -> tuple[aiohttp.ClientResponse, str]:
        begun, text = await self.get("/sign-in/provider")
        assert begun.status == 303, text
        return await self.get(await self.authorized(login, begun.headers["Location"]))

    async def close(self) -> None:
        await self._client.close()


@contextlib.asynccontextmanager
async def user_of(world: World, console: Console) -> AsyncIterator[User]:
    user = User(world, console)
    try:
        yield user
    finally:
        await user.close()


@pytest.mark.attack_class(25)
async def test_a_user_of_the_provider_sees_what_the_api_server_lets_them(world: World, console: Console) -> None:
    create_deployment(world.api, "default", "chat")
    async with user_of(world, console) as user:
        begun, _ = await user.get("/sign-in/provider")
        query = URL(begun.headers["Location"]).query
        assert (query["code_challenge_method"], query["response_type"]) == ("S256", "code")
        assert query["redirect_uri"] == user.console.url + "/sign-in/callback"
        kept = next(line for line in begun.headers.getall("Set-Cookie") if line.startswith(FLOW))
        assert {"HttpOnly", "Secure", "SameSite=Lax", "Path=/"} <= set(kept.split("; "))
        back = await user.authorized("alice", begun.headers["Location"])
        answer, text = await user.get(back)
        assert answer.status == 200 and 'url=/deployments"' in text
        session = next(
            line for line in answer.headers.getall("Set-Cookie") if line.startswith("__Host-slipway-console")
        )
        assert {"HttpOnly", "Secure", "SameSite=Strict", "Path=/"} <= set(session.split("; "))
        _, text = await user.get("/deployments?namespace=default")
        assert "oidc:alice" in text and "chat" in text and csrf_of(text)
        # A code counts once, and only in the browser that began.
        again, text = await user.get(back)
        assert again.status == 400 and "was not begun in this browser" in text
        log = user.console.log.read_text()
        assert '"user": "oidc:alice"' in log and "code=" not in log and "eyJ" not in log


async def test_a_user_without_rights_is_signed_in_and_may_nothing(world: World, console: Console) -> None:
    async with user_of(world, console) as user:
        answer, _ = await user.sign_in("mallory")
        assert answer.status == 200
        _, text = await user.get("/deployments?namespace=default")
        assert "Your token may not list modeldeployments.slipway.dev" in text


async def test_a_client_with_a_secret_proves_itself(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    flag = f"--oidc-client-secret-file={secret}"
    secret.write_text("wrong\n")
    with world.console("secretive", flag) as console:
        user = User(world, console)
        answer, text = await user.sign_in("alice")
        assert (answer.status, "gave no token" in text) == (403, True)
        await user.close()
    secret.write_text("s3cr:t\n")
    with world.console("secretive", flag) as console:
        user = User(world, console)
        answer, text = await user.sign_in("alice")
        # The provider gives a token, which this API server takes of the client `console` alone.
        assert (answer.status, "does not accept its token" in text) == (401, True)
        await user.close()


@pytest.mark.attack_class(25)
async def test_a_token_for_a_client_that_the_api_server_does_not_trust_opens_no_session(world: World) -> None:
    with world.console("other") as console:
        user = User(world, console)
        answer, text = await user.sign_in("alice")
        assert (answer.status, "does not accept its token" in text) == (401, True)
        await user.close()
        assert "__Host-slipway-console" not in user.cookies


@pytest.mark.attack_class(25)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"state": "x" * 43}, "was not begun in this browser"),
        ({"code": "wrong"}, "gave no token"),
        ({"code": ""}, "has no code"),
        ({"iss": "https://evil.example"}, "of another identity provider"),
        ({"error": "access_denied", "error_description": "<b>call 555"}, "did not sign you in (access_denied)"),
        ({"error": "<b>call 555"}, "did not sign you in."),
    ],
    ids=["state", "code", "none", "issuer", "denied", "hostile"],
)
async def test_an_answer_that_does_not_fit_opens_no_session(
    world: World, console: Console, change: dict[str, str], sentence: str
) -> None:
    async with user_of(world, console) as user:
        begun, _ = await user.get("/sign-in/provider")
        back = URL(await user.authorized("alice", begun.headers["Location"]))
        answer, text = await user.get(str(back.update_query(change)))
        assert answer.status in (400, 403) and sentence in text and "call 555" not in text
        assert "__Host-slipway-console" not in user.cookies
        assert user.cookies[FLOW] == ""


@pytest.mark.attack_class(25)
async def test_the_answer_to_another_browser_opens_no_session(world: World, console: Console) -> None:
    """An attacker's own code, which a victim is led to: the victim would work as the attacker."""
    async with user_of(world, console) as attacker:
        begun, _ = await attacker.get("/sign-in/provider")
        back = await attacker.authorized("mallory", begun.headers["Location"])
        victim = User(world, attacker.console)
        for _ in range(2):
            answer, text = await victim.get(back)
            assert (answer.status, "was not begun in this browser" in text) == (400, True)
            await victim.get("/sign-in/provider")  # also one that has begun itself
        await victim.close()


async def test_in_a_browser_the_sign_in_leads_to_the_first_page(console: Console) -> None:
    async with chromium.browser() as browser:
        context = await browser.new_context(base_url=console.url, ignore_https_errors=True)
        page = await context.new_page()
        await page.goto("/")
        await page.get_by_role("link", name="Sign in at your identity provider").click()
        await page.get_by_placeholder("Enter any login").fill("alice")
        await page.get_by_placeholder("and password").fill("x")
        await page.get_by_role("button", name="Sign-in").click()
        await page.get_by_role("button", name="Continue").click()
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        assert URL(page.url).path == "/deployments"
        assert await page.evaluate("document.cookie") == ""


async def test_a_provider_that_is_away_is_a_sentence(world: World) -> None:
    with world.console("console", f"--oidc-issuer=https://localhost:{reserve_port()}") as console:
        user = User(world, console)
        answer, text = await user.get("/sign-in/provider")
        assert (answer.status, "cannot be reached" in text) == (503, True)
        answer, text = await user.get("/sign-in")
        assert answer.status == 200 and "Token" in text
        await user.close()
