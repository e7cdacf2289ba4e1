"""s3:// from a real S3 server (moto), as a process and in this one."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from slipway_fetcher import fetching as fetcher
from slipway_fetcher import folder, guard
from slipway_fetcher.folder import FetchError, UnusableError
from slipway_fetcher.guard import EgressRules, RefusedError
from slipway_fetcher.objects import download, listing
from slipway_fetcher.objects import journal as journals
from slipway_fetcher.objects.access import StoreAccess
from slipway_fetcher.objects.journal import Journal
from slipway_process.model_folder.checkpoint import CheckpointError
from tests.fetcher.site import LIMIT, Site, contents, run
from tests.server.process import SOURCES
from tests.support.stores import S3, moto

pytestmark = pytest.mark.integration

KEYS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "canary"}
HERE = EgressRules.of(["127.0.0.1", "localhost"])


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with moto(tmp_path_factory.mktemp("moto") / "log") as server:
        yield server


@pytest.fixture
def bucket(s3: S3, request: pytest.FixtureRequest, tiny_v1: Path) -> str:
    """One with the model in folder `chat`."""
    name = "b" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    s3.put(name, {f"chat/{file}": body for file, body in contents(tiny_v1).items()})
    return name


def fetch(
    s3: S3 | Site, uri: str, dest: Path, *, max_bytes: int = LIMIT, variables: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    access = StoreAccess(f"http://127.0.0.1:{s3.port}", variables=KEYS if variables is None else variables)
    sources = fetcher.Sources(more.pop("rules", HERE), store=access, **more)
    fetcher.fetch(uri, "", dest, max_bytes=max_bytes, sources=sources)
    marker: dict[str, Any] = json.loads((dest / "slipway-model.json").read_bytes())
    return marker


def flags(s3: S3) -> tuple[str, ...]:
    return ("--endpoint", s3.url, "--allow-host", "127.0.0.1")


def test_a_model_of_a_bucket(s3: S3, bucket: str, tiny_v1: Path, tmp_path: Path) -> None:
    s3.put(
        bucket,
        {
            "chat/": b"",
            "chat/original/": b"",
            "chat/original/a.py": b"",
            "chat/pytorch_model.bin": b"x",
            "other/config.json": b"{}",
        },
    )
    redirected = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_PROXY_URL": "http://127.0.0.1:9"}
    code, words, log = run(tmp_path / "dest", f"s3://{bucket}/chat", *flags(s3), **KEYS, **redirected)
    assert code == 0, words
    report = json.loads(words)["weights"]
    assert (report["files"], report["commit"]) == (len(contents(tiny_v1)), "")
    marker = json.loads((tmp_path / "dest" / "slipway-model.json").read_bytes())
    assert contents(Path(marker["path"])) == contents(tiny_v1)
    assert marker["left_out"] == ["original/a.py", "pytorch_model.bin"]
    assert '"mb_per_second"' in log and "canary" not in log + words + json.dumps(marker)
    before = len(s3.gets(bucket))
    assert run(tmp_path / "dest", f"s3://{bucket}/chat", *flags(s3), **KEYS)[0] == 0
    assert len(s3.gets(bucket)) == before, "a finished download was repeated"
    assert not list((tmp_path / "dest").glob("*.partial"))


def test_a_revision_and_a_pin_hold_the_bytes(s3: S3, bucket: str, tmp_path: Path) -> None:
    code, words, _ = run(tmp_path / "a", f"s3://{bucket}/chat/", *flags(s3), **KEYS)
    digest = json.loads(words)["weights"]["digest"]
    (tmp_path / "pin.json").write_text(json.dumps({"digest": digest, "commit": ""}))
    assert run(tmp_path / "b", f"s3://{bucket}/chat", "--revision", digest, *flags(s3), **KEYS)[0] == code == 0
    s3.put(bucket, {"chat/README.md": b"another"})
    pinned = ("--pin-file", str(tmp_path / "pin.json"))
    code, words, _ = run(tmp_path / "c", f"s3://{bucket}/chat", *pinned, *flags(s3), **KEYS)
    assert code == os.EX_DATAERR and f"; the revision is pinned to {digest}." in words
    code, words, _ = run(tmp_path / "d", f"s3://{bucket}/chat", "--revision", digest, *flags(s3), **KEYS)
    assert code == os.EX_DATAERR and f"spec.model.revision is {digest}." in words


KILLED = """
import os, signal, sys
from slipway_fetcher.__main__ import main
from slipway_fetcher.objects import download, journal
download.PART_BYTES = 65536
add, left = journal.Journal.add, [int(os.environ["PARTS"])]
def counted(*arguments):
    add(*arguments)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
journal.Journal.add = counted
main()
"""


def test_a_killed_download_goes_on(s3: S3, bucket: str, tiny_v1: Path, tmp_path: Path) -> None:
    def started(parts: int) -> int:
        command = [sys.executable, "-c", KILLED, "--uri", f"s3://{bucket}/chat", "--dest", str(tmp_path / "dest")]
        environment = {**os.environ, **KEYS, "PARTS": str(parts), "PYTHONPATH": SOURCES}
        environment["SLIPWAY_TERMINATION_LOG"] = str(tmp_path / "words")
        return subprocess.run([*command, *flags(s3)], env=environment, capture_output=True, check=False).returncode

    assert started(20) == -9
    assert not (tmp_path / "dest" / "slipway-model.json").exists()
    assert started(10**6) == 0
    whole = sum(-(-len(body) // 65536) for body in contents(tiny_v1).values())
    assert len(s3.gets(bucket)) <= whole + download.PARALLEL, "more than what was in flight was requested again"
    assert contents(tmp_path / "dest" / "model") == contents(tiny_v1)


def test_parts_of_another_boot_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk's cache lost would be holes in the file."""
    stored = listing.StoredObject("a", 100, "tag")
    journal = Journal(tmp_path / "parts", "here")
    journal.add("a", stored, 10, 3)
    journal.close()
    with (tmp_path / "parts").open("a") as file:
        file.write('["cut o')
    assert Journal(tmp_path / "parts", "here").done("a", stored, 10) == {3}
    assert not Journal(tmp_path / "parts", "here").done("a", listing.StoredObject("a", 100, "other"), 10)
    monkeypatch.setattr(journals, "_boot", lambda: "another")
    assert not Journal(tmp_path / "parts", "here").done("a", stored, 10)


@pytest.mark.parametrize("body", [b"x" * 3_121_024, b"longer" * 10**6, None], ids=["same-size", "longer", "gone"])
def test_an_object_that_changes_meanwhile(
    s3: S3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes | None
) -> None:
    monkeypatch.setattr(download, "PART_BYTES", 65536)
    monkeypatch.setattr(download, "PARALLEL", 1)
    add = Journal.add

    def changing(*arguments: Any) -> None:
        add(*arguments)
        if arguments[1] == "model.safetensors" and arguments[4] == 5:
            s3.put(bucket, {"chat/model.safetensors": body}) if body else s3.call(
                "DELETE", f"/{bucket}/chat/model.safetensors"
            )

    monkeypatch.setattr(Journal, "add", changing)
    with pytest.raises(FetchError, match="changed during the download") as caught:
        fetch(s3, f"s3://{bucket}/chat", tmp_path / "dest")
    assert not isinstance(caught.value, UnusableError), "the next try takes what is there"
    assert not (tmp_path / "dest" / "model").exists()


def test_more_objects_than_a_page(s3: S3, bucket: str, tmp_path: Path) -> None:
    s3.put(bucket, {f"chat/notes/{number:04}.txt": b"x" for number in range(1205)})
    assert len(fetch(s3, f"s3://{bucket}/chat", tmp_path / "dest")["files"]) == 1205 + 8


@pytest.mark.attack_class(8)
@pytest.mark.parametrize(
    "key", ["chat/../../x.json", "chat//etc/x.json", "chat/./x.json", "chat/a\x01b.json", "chat/a\x7f.json"]
)
def test_names_that_lead_out(s3: S3, bucket: str, tmp_path: Path, key: str) -> None:
    s3.put(bucket, {key: b"{}"})
    with pytest.raises(UnusableError, match=r"whose name no folder can have|characters of control|leads out"):
        fetch(s3, f"s3://{bucket}/chat", tmp_path / "dest")
    assert not list(tmp_path.rglob("x.json"))


def test_names_of_one_file(s3: S3, bucket: str, tmp_path: Path) -> None:
    s3.put(bucket, {"chat/a.json": b"{}", "chat/a.json/b.json": b"{}"})
    with pytest.raises(UnusableError, match="cannot be a file and a folder"):
        fetch(s3, f"s3://{bucket}/chat", tmp_path / "dest")


def listed(*files: tuple[str, int], more: str = "") -> bytes:
    items = "".join(
        f"<Contents><Key>{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;e&quot;</ETag><Size>{size}</Size></Contents>"
        for name, size in files
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}{more}</ListBucketResult>".encode()


@pytest.mark.attack_class(8)
@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (listed(("chat/model.safetensors", 10**15)), r"has 1000000000000000 bytes; the limit is"),
        (listed(*((f"chat/{number}.txt", 1) for number in range(20_001))), "more than 20000 objects"),
        (listed(*((f"chat/{number}.txt", 1) for number in range(10_001))), "at most 10000 are taken"),
        (listed(("chat/" + "n" * 300 + ".json", 1)), "too long"),
        (b"welcome", "does not answer as an object store"),
        (listed(more="<x>" + "x" * 40 * 2**20 + "</x>"), "too long: name the folder of one model"),
    ],
    ids=["bytes", "objects", "files", "name", "no-store", "long-list"],
)
def test_huge_and_foreign_claims(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, sentence: str
) -> None:
    monkeypatch.setattr(download, "BACKOFF_S", 0.01)
    site.files["/bucket"] = answer
    with pytest.raises((FetchError, CheckpointError), match=sentence):
        fetch(site, "s3://bucket/chat", tmp_path / "dest", formats=folder.ANY_ENGINE)


def test_a_full_disk_is_told_first(site: Site, tmp_path: Path) -> None:
    site.files["/bucket"] = listed(("chat/model.safetensors", 10**15))
    with pytest.raises(folder.DiskFullError, match="There is no room for the model"):
        fetch(site, "s3://bucket/chat", tmp_path / "dest", max_bytes=10**16)


def test_what_is_wrong_is_told_with_a_remedy(s3: S3, bucket: str, tmp_path: Path) -> None:
    sentences = {
        "s3://not-there/chat": "There is no bucket not-there at http://127.0.0.1",
        f"s3://{bucket}/chart": f"There is no object under s3://{bucket}/chart/: correct the folder",
        "s3://B_/chat": "is no name of a bucket: write s3://bucket/folder",
        f"s3://{bucket}/a/../b": "is no folder of a bucket",
    }
    for uri, sentence in sentences.items():
        with pytest.raises(FetchError, match=sentence):
            fetch(s3, uri, tmp_path / "dest")
    with pytest.raises(FetchError, match="one is missing: write both"):
        fetch(s3, f"s3://{bucket}/chat", tmp_path / "dest", variables={"AWS_ACCESS_KEY_ID": "a"})


def test_without_credentials(s3: S3, bucket: str, tmp_path: Path) -> None:
    """moto refuses to read objects of a private bucket anonymously, as S3 does."""
    with pytest.raises(FetchError, match="denied without credentials: name a Secret with AWS_ACCESS_KEY_ID and"):
        fetch(s3, f"s3://{bucket}/chat", tmp_path / "dest", variables={})


def test_denied_credentials(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With its checks of identities on, moto knows none of these keys."""
    log = tmp_path_factory.mktemp("strict") / "log"
    sentence = r"does not accept the credentials \(InvalidAccessKeyId\): correct"
    with moto(log, INITIAL_NO_AUTH_ACTION_COUNT="0") as strict, pytest.raises(FetchError, match=sentence):
        fetch(strict, "s3://bucket/chat", tmp_path / "dest")


def test_statuses_and_their_remedies(site: Site, tmp_path: Path) -> None:
    def message_of(status: int) -> str:
        site.statuses = [status] * 8
        with pytest.raises(FetchError) as caught:
            fetch(site, "s3://bucket/chat", tmp_path / "dest")
        return str(caught.value)

    assert "access is denied to the credentials that were given: allow them to list and read it" in message_of(403)
    assert "is in another region, or at another endpoint" in message_of(301)
    assert "There is no bucket bucket at" in message_of(404)


def offer_objects(site: Site, bucket: str, files: dict[str, bytes]) -> None:
    """As S3 answers; the headers are those that its clients need."""
    site.files[f"/{bucket}"] = listed(*((f"chat/{name}", len(body)) for name, body in files.items()))
    for name, body in files.items():
        site.files[f"/{bucket}/chat/{name}"] = body
        site.headers[f"/{bucket}/chat/{name}"] = {"ETag": '"e"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}


def test_https_goes_through_a_tunnel(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    """The certificate is checked by the authorities that Python trusts too (SSL_CERT_FILE)."""
    offer_objects(site, "bucket", contents(tiny_v1))
    sources = fetcher.Sources(HERE, store=StoreAccess(https, variables=KEYS))
    fetcher.fetch("s3://bucket/chat", "", tmp_path, max_bytes=LIMIT, sources=sources)
    assert contents(tmp_path / "model") == contents(tiny_v1)
    sent = [headers for _, headers in site.seen]
    assert all("AKIAEXAMPLE" in str(headers) for headers in sent)


@pytest.mark.attack_class(8)
def test_a_certificate_of_an_unknown_authority(
    https: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    sources = fetcher.Sources(HERE, store=StoreAccess(https, variables=KEYS))
    with pytest.raises(FetchError, match=r"cannot be read: the connection broke|certificate"):
        fetcher.fetch("s3://bucket/chat", "", tmp_path, max_bytes=LIMIT, sources=sources)
    assert site.requests == []


@pytest.mark.attack_class(8)
def test_a_name_that_has_a_private_address(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redirected to by name: the address of the connection counts. The store's own host may be private."""
    real = guard.socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **more: Any) -> Any:
        address = {"cdn.example.com": "10.1.2.3", "rebound.example.com": "169.254.169.254"}.get(host, host)
        return real(address, port, **more)

    monkeypatch.setattr(guard.socket, "getaddrinfo", getaddrinfo)
    for host in ("cdn.example.com", "rebound.example.com"):
        site.redirects["/bucket"] = f"http://{host}/x"
        with pytest.raises(RefusedError, match=f"{host} leads to "):
            fetch(site, "s3://bucket/chat", tmp_path)


def test_a_bucket_of_google(s3: S3, bucket: str, tiny_v1: Path, tmp_path: Path) -> None:
    """Its XML API is that of S3, so moto answers it: without credentials, as for a public bucket."""
    assert s3.call("PUT", f"/{bucket}?acl", headers={"x-amz-acl": "public-read"}) == 200
    for name in contents(tiny_v1):
        assert s3.call("PUT", f"/{bucket}/chat/{name}?acl", headers={"x-amz-acl": "public-read"}) == 200
    fetch(s3, f"gs://{bucket}/chat", tmp_path, variables={})
    assert contents(tmp_path / "model") == contents(tiny_v1)


@pytest.mark.parametrize("key", ["{", "[]", '{"type": "authorized_user"}', '{"type": "service_account"}'])
def test_a_key_of_google_that_is_none(site: Site, tmp_path: Path, key: str) -> None:
    with pytest.raises(FetchError, match="GOOGLE_SERVICE_ACCOUNT_KEY of the Secret is not the JSON key"):
        fetch(site, "gs://bucket/chat", tmp_path, variables={"GOOGLE_SERVICE_ACCOUNT_KEY": key})


@pytest.fixture(scope="session")
def google_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return json.dumps({
        "type": "service_account", "client_email": "me@example.com", "private_key_id": "1",
        "private_key": key.private_bytes(*form).decode(),
        "gcs_base_url": "http://10.1.2.3", "token_uri": "http://10.1.2.3", "disable_oauth": True,
    })  # fmt: skip


@pytest.mark.attack_class(8)
def test_a_key_of_google_signs_and_leads_nowhere(
    site: Site, tiny_v1: Path, tmp_path: Path, google_key: str, caplog: pytest.LogCaptureFixture
) -> None:
    offer_objects(site, "bucket", contents(tiny_v1))
    fetch(site, "gs://bucket/chat", tmp_path, variables={"GOOGLE_SERVICE_ACCOUNT_KEY": google_key})
    assert contents(tmp_path / "model") == contents(tiny_v1)
    assert all("Bearer " in str(headers) for _, headers in site.seen)
    damaged = json.dumps({**json.loads(google_key), "private_key": "canary"})
    with pytest.raises(FetchError, match="cannot be read with the credentials that were given") as caught:
        fetch(site, "gs://bucket/chat", tmp_path / "b", variables={"GOOGLE_SERVICE_ACCOUNT_KEY": damaged})
    assert "canary" not in str(caught.value) + caplog.text


AZURE = (
    '<?xml version="1.0"?><EnumerationResults><Blobs>{}</Blobs><NextMarker/></EnumerationResults>',
    "<Blob><Name>chat/{}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>"
    "<Etag>0x8D</Etag><Content-Length>{}</Content-Length><Content-Type>a</Content-Type></Properties></Blob>",
)


@pytest.mark.parametrize(
    "secret", [{}, {"AZURE_STORAGE_ACCOUNT_KEY": "Y2FuYXJ5"}, {"AZURE_STORAGE_SAS_TOKEN": "?sv=2026&sig=canary"}]
)
def test_a_container_of_azure(
    site: Site, tiny_v1: Path, tmp_path: Path, secret: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """As its documentation has the answers: lists have ETags without quotes, objects with."""
    files = contents(tiny_v1)
    blobs = "".join(AZURE[1].format(name, len(body)) for name, body in files.items())
    site.files["/team1/models"] = AZURE[0].format(blobs).encode()
    for name, body in files.items():
        path = f"/team1/models/chat/{name}"
        site.files[path] = body
        site.headers[path] = {"ETag": '"0x8D"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    access = StoreAccess(f"http://127.0.0.1:{site.port}/team1", account="team1", variables=secret)
    fetcher.fetch("az://models/chat", "", tmp_path, max_bytes=LIMIT, sources=fetcher.Sources(HERE, store=access))
    assert contents(tmp_path / "model") == files
    assert "canary" not in caplog.text


def test_an_account_and_an_endpoint_of_azure(site: Site, tmp_path: Path) -> None:
    for access, sentence in (
        (StoreAccess(), "needs its storage account"),
        (StoreAccess(account="A"), "cannot be 'A'"),
        (StoreAccess(endpoint="http://minio:99999"), "endpoint has a port that does not exist"),
        (StoreAccess(account="abc", variables={"AZURE_STORAGE_ACCOUNT_NAME": "other"}), "name two accounts"),
    ):
        with pytest.raises(FetchError, match=sentence):
            fetcher.fetch("az://models/chat", "", tmp_path, max_bytes=1, sources=fetcher.Sources(HERE, store=access))


@pytest.mark.attack_class(8)
def test_the_pods_own_identity_goes_to_the_cloud_alone(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("canary")
    identity = {
        "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "token"), "AZURE_CLIENT_ID": "a", "AZURE_TENANT_ID": "b",
        "AZURE_AUTHORITY_HOST": "https://login.example.com",
    }  # fmt: skip
    sources = fetcher.Sources(HERE, store=StoreAccess(account="team1", variables=identity))
    with pytest.raises(FetchError, match=r"AZURE_AUTHORITY_HOST is login\.example\.com: it is one of"):
        fetcher.fetch("az://models/chat", "", tmp_path, max_bytes=1, sources=sources)
    role = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "none"), "AWS_ROLE_ARN": "arn:aws:iam::1:role/a"}
    with pytest.raises(FetchError, match="with the pod's token: check the identity of its service account"):
        fetcher.fetch(
            "s3://bucket/chat", "", tmp_path, max_bytes=1, sources=fetcher.Sources(store=StoreAccess(variables=role))
        )


@pytest.mark.attack_class(8)
@pytest.mark.parametrize(
    ("uri", "identity", "host"),
    [
        (
            "s3://bucket/chat",
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/a"},
            "sts.us-east-1.amazonaws.com",
        ),
        (
            "az://models/chat",
            {"AZURE_FEDERATED_TOKEN_FILE": "token", "AZURE_CLIENT_ID": "a", "AZURE_TENANT_ID": "b"},
            "login.microsoftonline.com",
        ),
    ],
)
def test_tokens_are_exchanged_through_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, identity: dict[str, str], host: str
) -> None:
    (tmp_path / "token").write_text("canary")
    resolved: list[str] = []

    def getaddrinfo(name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        resolved.append(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("169.254.169.254", port))]

    monkeypatch.setattr(guard.socket, "getaddrinfo", getaddrinfo)
    variables = {name: str(tmp_path / "token") if value == "token" else value for name, value in identity.items()}
    access = StoreAccess(account="team1", variables=variables)
    with pytest.raises(RefusedError, match=f"{host} leads to 169.254.169.254, a metadata service"):
        fetcher.fetch(uri, "", tmp_path / "dest", max_bytes=1, sources=fetcher.Sources(store=access))
    assert set(resolved) == {host}


@pytest.mark.attack_class(8)
def test_an_endpoint_that_is_not_there(tmp_path: Path, site: Site) -> None:
    site.server.server_close()
    with pytest.raises(FetchError, match=r"cannot be reached: Connection refused.*objectStore\.endpoint"):
        fetch(site, "s3://bucket/chat", tmp_path / "dest")


@pytest.mark.attack_class(8)
def test_a_redirect_to_a_private_address_is_refused(site: Site, tmp_path: Path) -> None:
    for target in ("http://10.1.2.3/x", "http://169.254.169.254/latest/meta-data", "http://[fd00:ec2::254]/"):
        site.redirects["/bucket"] = target
        with pytest.raises(RefusedError, match="where models are not fetched from"):
            fetch(site, "s3://bucket/chat", tmp_path / "dest")


@pytest.mark.attack_class(8)
def test_this_machine_is_for_tests(site: Site, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="a loopback address"):
        fetch(site, "s3://bucket/chat", tmp_path / "dest", rules=EgressRules())
    assert site.requests == []


@pytest.mark.attack_class(8)
@pytest.mark.parametrize("name", ["KEYS", "none"])
def test_no_variable_leads_to_a_metadata_service(
    s3: S3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Site, name: str
) -> None:
    here = f"http://127.0.0.1:{site.port}"
    for variable in (
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS", "AWS_METADATA_ENDPOINT"),
        *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_PROXY_URL", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT"),
    ):
        monkeypatch.setenv(variable, here)
    variables = KEYS if name == "KEYS" else {}
    try:
        fetch(s3, f"s3://{bucket}/chat", tmp_path / "dest", variables=variables)
    except FetchError as error:
        assert "denied without credentials" in str(error) and not variables
    assert site.requests == []
