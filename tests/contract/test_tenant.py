"""The gateway names and signs the tenant of a request; no other client can, and the server accepts that name."""

import base64
import json
import re
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_contracts.headers import PROOF, SHADOW, TENANT, WEIGHT
from slipway_gateway.mirror.shadow_request import ShadowRequest, make_shadow
from slipway_gateway.upstream import tenant_proof as proof
from slipway_gateway.upstream.tenant_proof import TenantSigner
from slipway_gateway.wire import headers as gateway
from slipway_gateway.wire import request_fields
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods import tenant_key
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model import labels
from slipway_operator.model.cluster import keys
from slipway_operator.model.cluster.keys import Key
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import Model, PodInputs
from slipway_process.serving import tenant as server
from slipway_process.serving.priority import PRIORITY, priority_of
from slipway_server.http.responses import resume
from slipway_server.settings import ServerSettings
from tests.contract.documented import TEXT
from tests.support.settings import parsed

ALL = request_fields.TENANT_SOURCES
TRUSTING = server.Tenants(trust=True)
NOW = 1_800_000_030.0


def tenant_of(sent: dict[str, str], user: object = None, *, salt: str = "s", sources: tuple[str, ...] = ALL) -> str:
    """The tenant that a server reads from the request that the gateway forwards for a client."""
    tenant = request_fields.tenant(
        CIMultiDict(sent), request_fields.parse(msgspec.json.encode({"user": user})), sources, salt
    )
    crossed = gateway.to_upstream(CIMultiDict(sent), "id", tenant)
    assert crossed.getall(TENANT, []) == ([tenant] if tenant else [])
    taken = TRUSTING.of(crossed)
    assert taken == tenant
    return taken


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_the_headers_are_the_same_words_on_both_sides() -> None:
    assert proof.WINDOW_S == server.WINDOW_S
    assert f"`{PROOF}: v1." in TEXT and f"Secret `{tenant_key.NAME}`" in TEXT
    assert f"`{TENANT}: " in TEXT


def test_shadow_header_is_the_same_on_both_sides_and_has_the_lowest_priority() -> None:
    assert f"`{SHADOW}: 1`" in TEXT
    request = ShadowRequest("/v1/completions", gateway.to_upstream(CIMultiDict(bearer("a")), "id", "b" * 32), b"{}")
    copied = make_shadow(request).headers
    assert priority_of(copied, -1000) == priority_of(copied) == PRIORITY > 1000 == priority_of(request.headers, 1000)
    assert priority_of(request.headers) == 0 and f"priority {PRIORITY}" in TEXT
    assert TRUSTING.of(copied) == sha256(b"shadow:" + b"b" * 32).hexdigest()[:32]


@pytest.mark.parametrize("name", [SHADOW, SHADOW.lower()])
def test_shadow_header_of_a_client_is_dropped(name: str) -> None:
    assert SHADOW not in gateway.to_upstream(CIMultiDict({name: "1"}), "id")


@settings(deadline=None, max_examples=30)
@given(st.text(min_size=1), st.text(min_size=1), st.text())
def test_tenant_name_is_the_same_at_each_gateway_and_hides_the_user(user: str, other: str, salt: str) -> None:
    name = tenant_of({}, user, salt=salt)
    assert re.fullmatch("[0-9a-f]{32}", name)
    assert (tenant_of({}, other, salt=salt) == name) == (user == other)
    assert tenant_of({}, user, salt=salt + "x") != name


def test_api_key_takes_precedence_over_user() -> None:
    assert (
        tenant_of(bearer("a"), "u1") == tenant_of(bearer("a"), "u2") == tenant_of(bearer("a")) != tenant_of(bearer("b"))
    )
    assert tenant_of({}, "a") != tenant_of(bearer("a")) and tenant_of({}, "u1") != tenant_of({}, "u2")
    assert tenant_of(bearer("a"), "u1", sources=("user",)) == tenant_of({}, "u1")
    assert tenant_of(bearer("a"), "u1", sources=("key",)) == tenant_of(bearer("a"))
    assert tenant_of(bearer("a"), "u1", sources=()) == ""


@pytest.mark.parametrize("headers", [{}, bearer("EMPTY"), bearer("none"), {"Authorization": "Basic YTpi"}])
@pytest.mark.parametrize("user", [None, "", 7, ["x"]])
def test_request_without_key_and_user_has_no_tenant(headers: dict[str, str], user: object) -> None:
    assert tenant_of(headers, user) == ""


@pytest.mark.parametrize("name", [TENANT, TENANT.lower(), TENANT.upper()])
@pytest.mark.parametrize("beside", [{}, bearer("a"), {"Connection": TENANT}])
def test_tenant_header_of_a_client_is_dropped(name: str, beside: dict[str, str]) -> None:
    assert tenant_of({name: "f" * 32} | beside) == tenant_of(beside)


class World:
    """A release with its keys as files: the operator's content, a gateway, and servers of deployments."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.now = folder, NOW
        self.unproved = 0
        self.content = (keys.new_key(b"1" * 36, NOW),)
        self.release(*self.content)
        self.gateway = TenantSigner(str(folder / "gateways"), lambda: self.now)

    def release(self, *content: Key, to: tuple[str, ...] = ("gateways", "team", "other")) -> None:
        """Write the Secret of the operator to the path where kubelets mount it."""
        for name in to:
            if name == "gateways":
                self._write(name, tenant_key.release_secret("sys", "keys", content)["data"][keys.KEYS])
            else:
                self._write(name, tenant_key.namespace_secret(name, content)["data"][keys.NAMESPACE_KEYS])
        self.now += max(proof.LOOK_AGAIN_S, server.RELOAD_S)

    def _write(self, name: str, data: str) -> None:
        new = self._folder / "new"
        new.write_bytes(base64.b64decode(data))
        new.replace(self._folder / name)

    def server(self, deployment: str) -> server.Tenants:
        path = str(self._folder / deployment.partition("/")[0])
        return server.Tenants(path, deployment, unproved=self._count, clock=lambda: self.now)

    def _count(self) -> None:
        self.unproved += 1

    def sent(self, deployment: str, tenant: str = "a" * 32, client: dict[str, str] | None = None) -> CIMultiDict[str]:
        headers = gateway.to_upstream(CIMultiDict(client or {}), "id", tenant)
        self.gateway.sign(headers, deployment)
        return headers


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.finding(19)
@pytest.mark.attack_class(9, 19)
def test_a_gateways_proof_is_honoured_by_the_servers_of_that_deployment_alone(world: World) -> None:
    """Safety 19: any client that reached a model pod could claim any tenant."""
    chat, other, neighbour = (world.server(name) for name in ("team/chat", "team/other", "other/chat"))
    headers = world.sent("team/chat")
    assert chat.of(headers) == "a" * 32 and not world.unproved
    assert other.of(headers) == neighbour.of(headers) == ""
    assert world.unproved == 2
    del headers[PROOF]
    assert chat.of(headers) == ""


@pytest.mark.attack_class(9, 11, 19)
@pytest.mark.parametrize("name", [PROOF, PROOF.lower(), TENANT.lower()])
def test_a_client_can_send_no_proof(world: World, name: str) -> None:
    stolen = world.sent("team/chat", "b" * 32)[PROOF]
    crossed = world.sent("team/chat", "", {name: stolen, TENANT: "b" * 32})
    assert PROOF not in crossed and TENANT not in crossed


def test_a_shadows_tenant_is_proved_as_its_own(world: World) -> None:
    copied = make_shadow(ShadowRequest("/v1/completions", world.sent("team/chat"), b"{}")).headers
    assert PROOF not in copied
    world.gateway.sign(copied, "team/chat")
    assert world.server("team/chat").of(copied) == sha256(b"shadow:" + b"a" * 32).hexdigest()[:32]


def test_request_that_resumes_after_an_hour_gets_a_new_signature(world: World) -> None:
    headers, chat = world.sent("team/chat"), world.server("team/chat")
    bound = resume.parse_request(headers, b"{}", "/v1/completions", chat.of(headers)).digest
    world.now += 3600
    assert chat.of(headers) == ""
    world.gateway.sign(headers, "team/chat")
    assert resume.parse_request(headers, b"{}", "/v1/completions", chat.of(headers)).digest == bound


@pytest.mark.attack_class(19)
def test_through_a_whole_rotation_no_request_is_unproved(world: World) -> None:
    """Each side sees the steps late, and not in the order of the other one."""
    chat, content, rotation_s = world.server("team/chat"), world.content, keys.MIN_ROTATION_S
    ids = {content[0].id}
    for step in range(200):
        fresh = keys.new_key(step.to_bytes(36, "big"), world.now)
        after = keys.advance(content, world.now, rotation_s, fresh)
        if after != content:
            sides = ("gateways", "team")
            for side in sides if step % 2 else sides[::-1]:
                world.release(*after, to=(side,))
                assert chat.of(world.sent("team/chat")) == "a" * 32
            content = after
            ids.add(content[0].id)
        world.now += 120
        assert chat.of(world.sent("team/chat", f"{step:032x}")) == f"{step:032x}"
    assert not world.unproved and len(ids) > 3


def test_without_keys_a_gateway_proves_nothing_and_requests_go_on(tmp_path: Path) -> None:
    headers = gateway.to_upstream(CIMultiDict(), "id", "a" * 32)
    for signer in (TenantSigner(""), TenantSigner(str(tmp_path / "none"))):
        signer.sign(headers, "team/chat")
        assert PROOF not in headers
    (tmp_path / "none").write_text('{"keys": []}')
    TenantSigner(str(tmp_path / "none")).sign(headers, "team/chat")
    (tmp_path / "none").write_text(json.dumps({"keys": [{"id": "a", "key": "c2hvcnQ="}]}))
    TenantSigner(str(tmp_path / "none")).sign(headers, "team/chat")
    assert PROOF not in headers


def test_a_gateway_keeps_the_last_keys_when_the_file_goes(world: World, tmp_path: Path) -> None:
    chat = world.server("team/chat")
    assert chat.of(world.sent("team/chat"))
    (tmp_path / "gateways").unlink()
    world.now += 60
    assert chat.of(world.sent("team/chat"))


def test_cache_of_proofs_is_bounded_and_a_proof_is_reused_for_a_minute(world: World) -> None:
    first = world.sent("team/chat")[PROOF]
    world.now += 20
    assert world.sent("team/chat")[PROOF] is first
    for number in range(proof.MAX_KEPT + 10):
        world.sent("team/chat", f"{number:032x}")
    assert len(world.gateway._kept) == proof.MAX_KEPT


def test_pod_has_the_tenant_settings_that_its_server_checks() -> None:
    snapshot = Snapshot("abcdefgh22", 1, PodInputs(Model("hf://org/m", "chat")), "slipway-server:1", 300, 2)
    pod = replica_set(Owner("chat", "team", "u"), snapshot, 1)["spec"]["template"]["spec"]
    (container,), (fetcher,) = pod["containers"], pod["initContainers"]
    environment = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    settings_ = parsed(ServerSettings.parse, container["args"], environment)
    assert (settings_.deployment, settings_.trust_tenant_header) == ("team/chat", False)
    mount = next(one for one in container["volumeMounts"] if one["name"] == "tenant-key")
    assert f"{mount['mountPath']}/{keys.NAMESPACE_KEYS}" == settings_.tenant_keys_file
    secret = next(one["secret"] for one in pod["volumes"] if one["name"] == "tenant-key")
    assert (secret["secretName"], secret["optional"]) == (tenant_key.NAME, True)
    assert "tenant-key" not in {one["name"] for one in fetcher["volumeMounts"]}
    assert labels.MANAGED_BY in tenant_key.namespace_secret("team", ())["metadata"]["labels"]


def weighted(world: World, weight: int, tenant: str = "a" * 32) -> CIMultiDict[str]:
    headers = gateway.to_upstream(CIMultiDict({WEIGHT: "1000"}), "id", tenant, weight=weight)
    world.gateway.sign(headers, "team/chat")
    return headers


def test_a_weight_is_honoured_for_its_tenant_and_deployment_alone(world: World) -> None:
    assert f"`{WEIGHT}: " in TEXT
    chat, other = world.server("team/chat"), world.server("team/other")
    headers = weighted(world, 7)
    assert chat.of(headers) == "a" * 32 and chat.weight_of("a" * 32) == 7.0
    assert chat.weight_of("b" * 32) == 1.0
    assert other.of(headers) == "" and other.weight_of("a" * 32) == 1.0
    # Signed again, for another attempt, and in another window.
    world.now += 3600
    world.gateway.sign(headers, "team/chat")
    assert chat.of(headers) == "a" * 32 and chat.weight_of("a" * 32) == 7.0
    assert WEIGHT not in weighted(world, 1)
    chat.of(weighted(world, 1))
    assert chat.weight_of("a" * 32) == 1.0


@pytest.mark.attack_class(9, 19)
@pytest.mark.parametrize("forged", ["1000", "1000.{signature}", "7.{zeros}", "0.{signature}", "99999.{signature}", "x"])
def test_a_weight_that_no_gateway_signed_counts_as_none(world: World, forged: str) -> None:
    chat, headers = world.server("team/chat"), weighted(world, 7)
    signature = headers[WEIGHT].partition(".")[2]
    headers[WEIGHT] = forged.format(signature=signature, zeros="0" * 64)
    assert chat.of(headers) == "a" * 32 and chat.weight_of("a" * 32) == 1.0


def test_a_server_behind_a_proxy_of_its_own_takes_a_weight_without_a_signature() -> None:
    trusting = server.Tenants(trust=True)
    assert trusting.of({TENANT: "a" * 32, WEIGHT: "3"}) and trusting.weight_of("a" * 32) == 3.0
