"""The one way out: hosts, addresses, redirects and credentials, against real servers on this machine."""

import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway_fetcher import guard, transfer
from slipway_fetcher.folder import FetchError
from slipway_fetcher.guard import EgressRules, RefusedError, check_address, check_url, shown
from slipway_fetcher.transfer import Transfer
from tests.fetcher.site import HERE, Site, contents, fetch, hub_fetch, manifest_of, offer, offer_repository, run
from tests.support.address_corpus import BLOCKED_ALWAYS, PRIVATE, PUBLIC, SPELLINGS

pytestmark = pytest.mark.attack_class(8)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening port of this machine, to check that there was no connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield server


def was_connected(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
        return True
    except TimeoutError:
        return False


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Every name has these addresses, one after the other: as a name server that rebinds."""
    left = list(addresses)

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        address = left.pop(0) if len(left) > 1 else left[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 0, "", (address, port))]

    monkeypatch.setattr(guard.socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("address", BLOCKED_ALWAYS)
def test_blocked_addresses_cannot_be_allowed(address: str) -> None:
    rules = EgressRules.of(networks=["0.0.0.0/0", "::/0"]).with_written("https://models.example.com")
    for host in ("models.example.com", "cdn.example.com"):
        with pytest.raises(RefusedError, match=f"{host} leads to .* where models are not fetched from"):
            check_address(rules, host, address)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_for_hosts_that_the_user_wrote(address: str) -> None:
    rules = EgressRules().with_written("https://Minio.models.svc:9000/chat")
    check_address(rules, "minio.models.svc", address)
    with pytest.raises(RefusedError, match=r"a private address.*list its network in SLIPWAY_FETCHER_ALLOW_NETWORKS"):
        check_address(rules, "cdn.example.com", address)
    check_address(EgressRules.of(networks=["0.0.0.0/0", "fc00::/7"]), "cdn.example.com", address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    check_address(EgressRules(), "cdn.example.com", address)


@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_this_machine_is_connected_to(host: str, listener: socket.socket) -> None:
    """The address that is connected to is looked at, not the text."""
    with pytest.raises(RefusedError, match=r"loopback|reserved"):
        guard.connect(EgressRules().with_written(f"https://{host}"), (host, listener.getsockname()[1]), 1.0)
    assert not was_connected(listener)


@pytest.mark.finding(23)
def test_a_name_that_leads_to_a_metadata_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Safety 23: there was no guard on hosts."""
    resolve_to(monkeypatch, "169.254.169.254")
    with pytest.raises(FetchError, match=r"models\.example\.com leads to 169\.254\.169\.254, a metadata service"):
        fetch("https://models.example.com/m.tar", tmp_path)


def test_a_name_that_changes_its_address(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    resolve_to(monkeypatch, "192.0.2.1", "127.0.0.1")
    rules = EgressRules().with_written("https://models.example.com")
    for _ in range(2):
        with pytest.raises(RefusedError):
            guard.connect(rules, ("models.example.com", listener.getsockname()[1]), 1.0)
    assert not was_connected(listener)


@pytest.mark.attack_class(1)
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://models.example.com/m.tar", "is not https"),
        ("ftp://models.example.com/m.tar", "is not https"),
        ("file:///etc/passwd", "is not https"),
        ("https:///m.tar", "names no host"),
        ("https://models.example.com:0/m", "names no host"),
        ("https://models.example.com:99999/m", "cannot be read"),
        ("https://[::1", "cannot be read"),
        ("https://user:canary@models.example.com/m", "with a user or password"),
        ("https://models.example.com@169.254.169.254/m", "with a user or password"),
        ("https://169.254.169.254/latest/meta-data", "a metadata service of a cloud"),
        ("https://[fd00:ec2::254]/latest", "a metadata service of a cloud"),
        ("https://[::ffff:169.254.169.254]/", "a metadata service of a cloud"),
        ("https://[64:ff9b::a9fe:a9fe]/", "a metadata service of a cloud"),
    ],
)
def test_urls_that_are_refused_without_a_request(url: str, sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence) as caught:
        check_url(EgressRules(), url, insecure=False)
    assert "canary" not in str(caught.value)


def test_messages_hold_no_secret_of_a_url() -> None:
    assert shown("https://me:canary@host:8443/a/b.tar?X-Signature=canary#canary") == "https://host:8443/a/b.tar"
    assert shown("https://[oops") == "a URL that cannot be read"


@pytest.mark.finding(23)
def test_a_redirect_to_this_machine_is_never_requested(
    https: str, site: Site, tiny_v1: Path, tmp_path: Path, listener: socket.socket
) -> None:
    """Safety 23: redirects were followed first and looked at afterwards."""
    offer(site, contents(tiny_v1))
    port = listener.getsockname()[1]
    for target in (f"https://127.0.0.1:{port}/", f"https://[::ffff:127.0.0.1]:{port}/", f"https://0.0.0.0:{port}/"):
        site.redirects["/m/slipway-manifest.json"] = target
        with pytest.raises(RefusedError, match="redirects where the fetcher does not go"):
            fetch(f"{https}/m", tmp_path, rules=EgressRules.of(["localhost"]))
    assert not was_connected(listener)


def test_a_redirect_from_https_to_http_is_never_requested(
    https: str, site: Site, tmp_path: Path, listener: socket.socket
) -> None:
    site.redirects["/m.tar"] = f"http://localhost:{listener.getsockname()[1]}/m.tar"
    with pytest.raises(RefusedError, match="is not https"):
        fetch(f"{https}/m.tar", tmp_path)
    assert not was_connected(listener)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://localhost/x", "data:,x", "//", "https://"])
def test_redirects_to_other_schemes(https: str, site: Site, tmp_path: Path, target: str) -> None:
    site.redirects["/m.tar"] = target
    with pytest.raises(FetchError):
        fetch(f"{https}/m.tar", tmp_path)
    assert not (tmp_path / "model").exists()


def test_redirects_without_end(https: str, site: Site, tmp_path: Path) -> None:
    site.redirects = {f"/{number}.tar": f"/{number + 1}.tar" for number in range(20)}
    with pytest.raises(FetchError, match="302"):
        fetch(f"{https}/0.tar", tmp_path)
    assert len(site.requests) <= 6


def test_a_redirect_within_the_rules_is_followed(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    files = contents(tiny_v1)
    site.files = {f"/cdn/{name}": body for name, body in files.items()}
    site.files["/m/slipway-manifest.json"] = manifest_of(files)
    site.redirects = {f"/m/{name}": f"{https}/cdn/{name}?signature=canary" for name in files}
    assert contents(Path(fetch(f"{https}/m", tmp_path)["path"])) == files


def test_a_private_address_by_redirect_needs_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "10.0.0.9")
    rules = EgressRules().with_written("https://models.example.com")
    with pytest.raises(RefusedError, match="a private address"):
        guard.connect(rules, ("cdn.example.com", 9), 1.0)
    check_address(EgressRules.of(networks=["10.0.0.0/24"]), "cdn.example.com", "10.0.0.9")


def test_a_malformed_network_setting_is_refused(tmp_path: Path) -> None:
    environment = {"SLIPWAY_FETCHER_ALLOW_NETWORKS": "10.0.0.0/8, everything"}
    code, words, _ = run(tmp_path / "dest", "https://localhost/m.tar", **environment)
    assert code == os.EX_NOINPUT and "written like 10.0.0.0/8" in words and "everything" in words


def test_a_hub_on_this_machine_is_for_tests(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer_repository(site, contents(tiny_v1))
    code, words, _ = run(tmp_path / "dest", "hf://org/tiny", HF_ENDPOINT=f"http://127.0.0.1:{site.port}")
    assert code == os.EX_NOINPUT and "127.0.0.1 leads to 127.0.0.1, a loopback address" in words
    assert site.requests == []
    assert hub_fetch(site, tmp_path / "dest", "hf://org/tiny")[0] == 0


def test_a_proxy_of_the_environment_is_used_and_the_target_is_still_checked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy resolves names itself, so only texts can be looked at: addresses of metadata services are refused."""
    monkeypatch.setattr(transfer, "BACKOFF_S", 0.01)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{site.port}")
    with pytest.raises(FetchError, match="metadata service"):
        Transfer(HERE, "https://169.254.169.254/latest")
    with pytest.raises((FetchError, http.client.HTTPException), match="failed"):
        Transfer(HERE, "https://models.example.com").read("https://models.example.com/x", 10)
