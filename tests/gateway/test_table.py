"""Objects from outside → the route table; choice of endpoints in it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.route_table import Backend, digest
from slipway_gateway.balancing.endpoint_picker import LeastLoad
from slipway_gateway.routing.pods import LABEL_WORKER_INDEX, parse_pod
from slipway_gateway.routing.router import order_backends, pick, pick_in_revision
from slipway_gateway.routing.split import tag
from slipway_gateway.routing.table import (
    Problem,
    RevisionEndpoints,
    Route,
    RouteTable,
    build,
    merge_route,
    parse_owners,
    parse_route,
)

CANARY, STABLE = Backend("c", 25, "v2"), Backend("s", 75, "v1")


def route(*backends: Backend, generation: int = 1, uid: str = "u", name: str = "default/chat") -> Route:
    return Route(name, uid, "chat", "2026-01-01T00:00:00Z", generation, "salt", backends or (CANARY, STABLE))


def table(one: Route, **urls: list[str]) -> RouteTable:
    return build([one], [RevisionEndpoints(one.name, revision, tuple(found)) for revision, found in urls.items()])


def deployment(traffic: Any = None, spec: Any = None) -> dict[str, Any]:
    meta = {"namespace": "default", "name": "chat", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": spec or {}, "status": {"traffic": traffic} if traffic else {}}


def pod(revision: str = "c", uid: str = "rs-c", **changes: Any) -> dict[str, Any]:
    """A ready pod of a revision's ReplicaSet. `changes`: of its metadata and its status."""
    owner = {"kind": "ReplicaSet", "name": f"chat-{revision}", "uid": uid, "controller": True}
    labels = {"slipway.dev/modeldeployment": "chat", "slipway.dev/revision": revision}
    meta = {"namespace": "default", "name": "chat-c-1", "labels": labels, "ownerReferences": [owner]}
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    ports = [{"name": "probe", "containerPort": 8001}, {"name": "http", "containerPort": 8000}]
    return {
        "metadata": meta | {key: value for key, value in changes.items() if key in (*meta, "deletionTimestamp")},
        "spec": {"containers": [{"ports": ports}]},
        "status": status | {key: value for key, value in changes.items() if key in status},
    }


# -- parsing


def test_traffic_of_the_contract() -> None:
    backends = [{"revision": "c", "version": "v2", "weight": 25}, {"revision": "s", "version": "v1", "weight": 75}]
    traffic = {"generation": 41, "model": "chat", "salt": "c.1", "backends": backends, "acknowledged": "2/2"}
    parsed = parse_route(deployment(traffic))
    known = Route("default/chat", "u", "chat", "2026-01-01T00:00:00Z", 41, "c.1", (CANARY, STABLE))
    assert parsed == replace(known, digest=digest(traffic))


@pytest.mark.parametrize(
    ("spec", "model"), [({}, "chat"), ({"model": {"name": "other"}}, "other"), ({"model": 1}, "chat")]
)
def test_without_traffic_the_model_is_known(spec: Any, model: str) -> None:
    parsed = parse_route(deployment(spec=spec))
    assert isinstance(parsed, Route)
    assert (parsed.model, parsed.generation, parsed.backends) == (model, 0, ())


@pytest.mark.parametrize(
    "change",
    [
        {"generation": "41"},
        {"model": None},
        {"backends": [{"revision": "c", "weight": 99}]},
        {"backends": [{"revision": "c", "weight": 101}]},
        {"backends": [{"revision": "c", "weight": -1}]},
        {"backends": [{"revision": "c", "weight": 50}, {"revision": "c", "weight": 50}]},
        {"backends": "all"},
    ],
)
def test_malformed_traffic_is_a_problem(change: Any) -> None:
    good = {"generation": 1, "model": "chat", "backends": [{"revision": "c", "weight": 100}]}
    assert isinstance(parse_route(deployment(good)), Route)
    problem = parse_route(deployment(good | change))
    assert isinstance(problem, Problem) and "default/chat" in problem.text


def test_a_digest_names_a_table_and_not_who_acknowledged_it() -> None:
    table_ = {"generation": 4, "model": "chat", "backends": [{"revision": "c", "weight": 100}], "acknowledged": "0/2"}
    same = {"acknowledged": "2/2", "backends": [{"weight": 100, "revision": "c"}], "model": "chat", "generation": 4}
    assert digest(table_) == digest(same) and len(digest(table_)) == 64
    assert digest(table_) != digest(same | {"model": "other"})


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.1", "https://10-0-0-1.default.pod.slipway.internal:8000"),
        ("fd00::1", "https://fd00-0000-0000-0000-0000-0000-0000-0001.default.pod.slipway.internal:8000"),
    ],
)
def test_a_pod_with_a_port_named_https_has_a_name_of_its_namespace(address: str, url: str) -> None:
    found = pod(podIP=address)
    found["spec"]["containers"][0]["ports"] = [{"name": "https", "containerPort": 8000}]
    assert parse_pod(found) == RevisionEndpoints("default/chat", "c", (url,), "rs-c")


def test_a_pod_with_tls_and_no_address_is_no_endpoint() -> None:
    found = pod(podIP="elsewhere.example.com/")
    found["spec"]["containers"][0]["ports"] = [{"name": "https", "containerPort": 8000}]
    assert parse_pod(found) is None


def test_pod_of_the_contract() -> None:
    assert parse_pod(pod()) == RevisionEndpoints("default/chat", "c", ("http://10.0.0.1:8000",), "rs-c")
    assert parse_pod(pod(podIP="fd00::1")) == RevisionEndpoints("default/chat", "c", ("http://[fd00::1]:8000",), "rs-c")
    unnamed = pod() | {"spec": {}}
    assert parse_pod(unnamed) == parse_pod(pod()), "port 8000, where none is named http"


@pytest.mark.parametrize(
    "change",
    [
        {"podIP": ""},
        {"phase": "Failed"},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"labels": {"slipway.dev/revision": "c"}},
        {"labels": {"slipway.dev/modeldeployment": "chat"}},
    ],
)
def test_pod_that_takes_no_requests(change: Any) -> None:
    assert parse_pod(pod(**change)) is None


@pytest.mark.parametrize("conditions", [[{"type": "Ready", "status": "False"}], []])
def test_a_pod_that_is_not_ready_takes_no_requests_and_is_there(conditions: Any) -> None:
    parsed = parse_pod(pod(conditions=conditions))
    assert parsed and not parsed.ready
    route = parse_route(deployment({"generation": 1, "model": "chat", "backends": [{"revision": "c", "weight": 100}]}))
    assert isinstance(route, Route)
    table_ = build([route], [parsed])
    assert table_.urls(route, "c") == () and table_.pods(route, "c") == ([], list(parsed.urls))


@pytest.mark.finding("S5")
@pytest.mark.parametrize(
    "owner",
    [
        {"kind": "ReplicaSet", "name": "evil", "uid": "e", "controller": True},
        {"kind": "Job", "name": "chat-c", "uid": "e", "controller": True},
        {"kind": "ReplicaSet", "name": "chat-c", "uid": "rs-c", "controller": False},
        {"kind": "ReplicaSet", "name": "chat-s", "uid": "rs-s", "controller": True},
        None,
    ],
    ids=["another ReplicaSet", "no ReplicaSet", "no controller", "another revision's", "no owner"],
)
def test_pod_of_another_owner_is_no_endpoint(owner: Any) -> None:
    """Story S5: a pod with a foreign controller and the two labels answered 4 of 10 requests."""
    assert parse_pod(pod(ownerReferences=[owner] if owner else [])) is None


@pytest.mark.parametrize(
    ("owner", "index", "serves"),
    [
        ("chat-c", "0", True),
        ("chat-c", "1", False),
        ("chat-c", None, False),
        ("chat-c-0", "1", False),
        ("other-c", "0", False),
    ],
    ids=["leader", "worker", "plain StatefulSet", "workers' own StatefulSet", "another's"],
)
def test_of_a_group_the_leader_is_an_endpoint(owner: str, index: str | None, serves: bool) -> None:
    controller = {"kind": "StatefulSet", "name": owner, "uid": "leaders", "controller": True}
    found = pod(ownerReferences=[controller])
    if index is not None:
        found["metadata"]["labels"] = {**found["metadata"]["labels"], LABEL_WORKER_INDEX: index}
    expected = RevisionEndpoints("default/chat", "c", ("http://10.0.0.1:8000",), "leaders")
    assert parse_pod(found) == (expected if serves else None)


@pytest.mark.finding("S5")
def test_pod_of_a_replica_set_that_is_not_the_published_one_is_no_endpoint() -> None:
    """Story S5: a user deleted the ReplicaSet and created another with its name."""
    listed = [{"revision": "c", "replicaSetUid": "rs-c"}, {"revision": "s"}]
    traffic = {"generation": 1, "model": "chat", "backends": [{"revision": "c", "weight": 100}]}
    parsed = parse_route({**deployment(traffic), "status": {"traffic": traffic, "revisions": listed}})
    assert isinstance(parsed, Route)
    ours, theirs = parse_pod(pod()), parse_pod(pod(uid="forged"))
    assert ours and theirs
    assert build([parsed], [ours, theirs]).urls(parsed, "c") == ours.urls
    assert build([parsed], [theirs]).urls(parsed, "c") == ()
    unknown = parse_pod(pod("s", uid="rs-s"))
    assert unknown and build([parsed], [unknown]).urls(parsed, "s") == (), "a revision without a ReplicaSet"
    older = replace(parsed, replica_sets={})
    assert build([older], [unknown]).urls(older, "s") == unknown.urls, "an operator that publishes no uids"


def test_a_standby_pod_that_serves_is_an_endpoint_and_one_that_waits_is_none() -> None:
    listed = [{"revision": "c", "replicaSetUid": "rs-c", "standbyUid": "rs-s"}, {"revision": "s", "replicaSetUid": "x"}]
    traffic = {"generation": 1, "model": "chat", "backends": [{"revision": "c", "weight": 100}]}
    parsed = parse_route({**deployment(traffic), "status": {"traffic": traffic, "revisions": listed}})
    assert isinstance(parsed, Route)
    serves, forged, waits, other = (
        parse_pod(_of_standby(pod(label, uid=uid), of))
        for label, uid, of in (("c", "rs-s", "c"), ("c", "mine", "c"), ("c-standby", "rs-s", "c"), ("s", "rs-s", "s"))
    )
    assert serves and forged and waits and other
    assert build([parsed], [serves, forged, waits, other]).endpoints == {("default/chat", "c"): serves.urls}
    assert parse_pod(_of_standby(pod("c", uid="rs-s"), "s")) is None, "the name is of another revision"
    lost = merge_route(parsed, replace(parsed, replica_sets={}, standby_sets={}))
    assert build([lost], [serves]).urls(lost, "c") == serves.urls


def _of_standby(found: dict[str, Any], revision: str) -> dict[str, Any]:
    found["metadata"]["ownerReferences"][0]["name"] = f"chat-{revision}-standby"
    return found


# -- the table


@pytest.mark.finding("S1")
@given(st.lists(st.integers(0, 20), max_size=20))
def test_the_newest_table_is_followed(generations: list[int]) -> None:
    """Story S1: a table with a lower number was not followed, and acknowledged all the same."""
    kept: Route | None = None
    for generation in generations:
        seen = replace(route(generation=generation), digest=f"digest of {generation}")
        kept = merge_route(kept, seen)
        assert kept == seen


def test_new_object_of_the_same_name_starts_without_counts() -> None:
    assert merge_route(route(generation=9), route(generation=1, uid="new")).generation == 1


def test_wiped_status_does_not_stop_a_model() -> None:
    wiped = parse_route(deployment())
    assert isinstance(wiped, Route)
    assert merge_route(route(generation=3), wiped).backends == (CANARY, STABLE)
    published = replace(route(generation=3), digest="d", replica_sets={"c": "rs-c"})
    without = replace(route(generation=4), digest="e")
    assert merge_route(published, without) == replace(without, replica_sets={"c": "rs-c"})


@pytest.mark.finding(14)
def test_a_name_is_served_by_its_owner_alone() -> None:
    """Safety 14: the oldest creationTimestamp won, whoever it was."""
    old = Route("z/late-name", "1", "chat", "2025-01-01T00:00:00Z")
    young = Route("a/early-name", "2", "chat", "2026-01-01T00:00:00Z")
    owned = build([old, young], [], {"chat": "a/early-name"})
    assert owned.models == {"chat": young}
    assert set(owned.routes) == {"z/late-name", "a/early-name"}
    assert (owned.id_of(young), owned.id_of(old)) == ("chat", "z/late-name")
    assert build([old], [], {"chat": "a/early-name"}).models == {}
    assert build([old], [], {}).models == {}


@pytest.mark.attack_class(22)
def test_a_claim_counts_for_the_declared_name_and_never_for_a_path() -> None:
    forged = Route("b/older", "1", "chat", "2020-01-01T00:00:00Z")
    assert build([forged], [], {"older": "b/older"}).models == {}
    slashed = Route("b/x", "1", "a/chat")
    table = build([slashed], [], {"a/chat": "b/x"})
    assert table.models == {} and table.id_of(slashed) == "b/x"


def test_names_in_a_file_need_no_owner() -> None:
    one = Route("file/org/chat", "file", "org/chat")
    table = build([one], [])
    assert table.models == {"org/chat": one} and table.id_of(one) == "org/chat"


@pytest.mark.parametrize(
    ("data", "owners"),
    [
        (None, None),
        ({}, None),
        ({"names.json": "{}"}, {}),
        ({"names.json": '{"chat": {"owner": "a/chat", "since": "x", "later": 1}}'}, {"chat": "a/chat"}),
    ],
)
def test_owners_of_the_contract(data: Any, owners: Any) -> None:
    assert parse_owners({"data": data}) == owners


@pytest.mark.parametrize("text", ["", "[]", '{"chat": "a/chat"}', '{"chat": {}}', '{"chat": {"owner": 1}}', "[" * 9999])
def test_owners_that_cannot_be_read_are_a_problem(text: str) -> None:
    assert isinstance(parse_owners({"data": {"names.json": text}}), Problem)


@pytest.mark.finding(26)
@pytest.mark.parametrize("revisions", [1, "a", [1], ["a"], [{"revision": {}}], {"revision": "a"}])
def test_malformed_revisions_are_a_problem(revisions: Any) -> None:
    """Safety 26: fuzzing found a TypeError here, which ends the gateway's watch."""
    obj = deployment({"generation": 1, "model": "m"})
    obj["status"]["revisions"] = revisions
    assert isinstance(parse_route(obj), Problem)


@pytest.mark.finding(26)
def test_a_port_without_a_number_is_the_default_one() -> None:
    """Safety 26: a KeyError, found by fuzzing."""
    one = pod()
    one["spec"] = {"containers": [{"ports": [{"name": "http"}]}]}
    found = parse_pod(one)
    assert found is not None and found.urls[0].endswith(":8000")


def test_slices_of_one_revision_add_up() -> None:
    one = route()
    merged = build(
        [one],
        [
            RevisionEndpoints(one.name, "c", ("u2", "u1")),
            RevisionEndpoints(one.name, "c", ("u1",)),
            RevisionEndpoints(one.name, "s", ()),
        ],
    )
    assert merged.endpoints == {(one.name, "c"): ("u1", "u2")}
    assert merged.ready(one)
    assert not build([one], []).ready(one)


def test_same_hash_in_two_deployments_stays_apart() -> None:
    one, other = route(), route(name="default/other")
    merged = build([one, other], [RevisionEndpoints(other.name, "c", ("u",))])
    assert merged.urls(one, "c") == () and merged.urls(other, "c") == ("u",)


# -- the choice


@given(st.text(max_size=20))
def test_preference_starts_with_the_weight_and_ends_with_the_weightless(key: str) -> None:
    one = route(Backend("dark", 0), Backend("c", 40), Backend("s", 60))
    order = [backend.revision for backend in order_backends(one, key)]
    assert sorted(order[:2]) == ["c", "s"] and order[2] == "dark"


@given(st.text(max_size=20))
def test_availability_goes_before_weight(key: str) -> None:
    one = route()
    found = pick(table(one, s=["s1"]), one, key, LeastLoad())
    assert found is not None and found.revision == "s"
    assert pick(table(one), one, key, LeastLoad()) is None


@given(st.text(max_size=20), st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_least_load(key: str, loads: list[int]) -> None:
    one = route(Backend("s", 100))
    inflight = {f"u{n}": load for n, load in enumerate(loads)}
    found = pick(table(one, s=["u0", "u1", "u2"]), one, key, LeastLoad(inflight))
    assert found is not None and inflight[found.url] == min(loads)
    again = pick(table(one, s=["u2", "u0", "u1"]), one, key, LeastLoad(inflight))
    assert again == found


@given(st.text(max_size=20))
def test_requests_of_the_same_tenant_count_twice_as_load(key: str) -> None:
    one = route(Backend("s", 100))
    shown, inflight = table(one, s=["u0", "u1"]), {"u0": 5, "u1": 6}
    found = [pick(shown, one, key, LeastLoad(inflight, own)) for own in ({}, {"u0": 2}, {"u1": 9})]
    assert [one and one.url for one in found] == ["u0", "u1", "u0"]


@given(st.text(max_size=20), st.sampled_from(["u0", "u1", "u2"]), st.sets(st.sampled_from(["u0", "u1", "u2"])))
def test_the_endpoint_that_holds_a_stream_goes_before_load(key: str, holder: str, excluded: set[str]) -> None:
    one = route(Backend("s", 100))
    shown, inflight = table(one, s=["u0", "u1", "u2"]), {holder: 9}
    found = pick_in_revision(shown, one, "s", key, LeastLoad(inflight), excluded=excluded, holder=tag(holder))
    if holder in excluded:
        assert found == pick_in_revision(shown, one, "s", key, LeastLoad(inflight), excluded=excluded)
    else:
        assert found is not None and found.url == holder
    gone = pick_in_revision(shown, one, "s", key, LeastLoad(inflight), holder=tag("http://gone:8000"))
    assert gone == pick_in_revision(shown, one, "s", key, LeastLoad(inflight))


def test_ties_spread_over_endpoints() -> None:
    one = route(Backend("s", 100))
    urls = [f"u{n}" for n in range(4)]
    hits = [pick(table(one, s=urls), one, f"key{n}", LeastLoad()) for n in range(2000)]
    for url in urls:
        assert 400 < sum(hit is not None and hit.url == url for hit in hits) < 600


@given(st.text(max_size=20), st.sets(st.sampled_from(["s1", "s2", "c1"])))
def test_excluded_endpoints_are_never_picked(key: str, excluded: set[str]) -> None:
    one = route()
    found = pick(table(one, s=["s1", "s2"], c=["c1"]), one, key, LeastLoad(), excluded)
    assert (found is None) == (len(excluded) == 3)
    assert found is None or found.url not in excluded


def test_a_lone_surrogate_in_place_of_a_table_is_a_problem() -> None:
    obj = {"metadata": {"namespace": "a", "name": "b", "uid": "u"}, "status": {"traffic": "\ud800"}}
    assert isinstance(parse_route(obj), Problem)
