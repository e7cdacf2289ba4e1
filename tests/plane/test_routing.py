"""Split, header routes, choice of an endpoint, and proofs of tenants: as Rust computes them and as Python does."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.headers import PROOF, TENANT, WEIGHT
from slipway_contracts.model_routes.spec import ModelRouteSpec
from slipway_contracts.route_table import Backend, HeaderMatch, HeaderRoute
from slipway_gateway.balancing.endpoint_picker import LeastLoad
from slipway_gateway.fast_lane.table import compile_model_routes
from slipway_gateway.routing import router, split
from slipway_gateway.routing.public_names import PublicRoute, choose_target
from slipway_gateway.routing.request_facts import RequestFacts
from slipway_gateway.routing.table import Route, RouteTable
from slipway_gateway.upstream.tenant_proof import TenantSigner
from slipway_gateway.wire import request_fields
from tests.plane.native import FEW, MILLION, SKIPPED, Pair, name_of, needs_plane, rust, twins

pytestmark = needs_plane

TEXTS = st.one_of(st.text(max_size=12), st.binary(max_size=8).map(lambda data: data.decode("utf-8", "replace")))
WEIGHTS = st.lists(st.one_of(st.integers(0, 100), st.sampled_from([0, 1, 99, 100, -1, 2**31 - 1])), max_size=6)


def random_text(random: Random) -> str:
    return "".join(chr(random.choice((random.randrange(1, 128), random.randrange(0xE000, 0x1F680)))) for _ in range(9))


def compare_split(case: tuple[Sequence[int], str, str]) -> None:
    weights, salt, key = case
    assert twins.choose(list(weights), salt.encode(), key.encode()) == split.choose(weights, salt, key)
    assert twins.tag(salt) == split.tag(salt)
    assert twins.affinity(salt, key.encode()) == split.affinity(salt, key)


def vary_split(case: Any, random: Random) -> Any:
    first = random.choice((1, 5, 50, 100))
    return (
        random.choice((case[0], [first, 100 - first])),
        random.choice((case[1], str(random.randrange(9)))),
        random_text(random),
    )


# -- header routes

MATCHES = st.builds(
    HeaderMatch,
    st.sampled_from(["host", "x-user", "x-none"]),
    exact=st.one_of(st.none(), st.sampled_from(["a", "A.Example", "[::1]", "", "\u00c9"])),
    prefix=st.one_of(st.none(), st.sampled_from(["a", "A.E", "", "["])),
)
RULES = st.lists(st.tuples(st.sampled_from("rst"), st.lists(MATCHES, max_size=3)), max_size=4)
VALUES = ("a", "A", "a.example:80", "A.EXAMPLE", "[::1]:8080", "[::1]", "::1", "a:", ":1", "", "a.example:8x")
LISTED = st.lists(st.tuples(st.sampled_from(["Host", "X-User", "host"]), st.sampled_from(VALUES)), max_size=3)


def compare_rules(case: tuple[list[tuple[str, list[HeaderMatch]]], list[tuple[str, str]]]) -> None:
    rules, listed = case
    header_routes = tuple(HeaderRoute("one", revision, tuple(matches)) for revision, matches in rules)
    route = Route("ns/a", "uid", "m", header_routes=header_routes)
    given = [(revision, [(one.name, one.exact, one.prefix) for one in matches]) for revision, matches in rules]
    found = twins.header_route(given, [(name, value.encode()) for name, value in listed])
    assert (found or "") == router.match_header_route(route, CIMultiDict(listed))


def vary_rules(case: Any, random: Random) -> Any:
    names = random.choices(["Host", "X-User", "X-None"], k=random.randint(0, 3))
    return case[0], [(name, random.choice(VALUES)) for name in names]


# -- ModelRoutes

NAMES = ("ns/a", "ns/b", "ns/c")
TENANTS = ("", "gold", "gold-1", "silver")
RANGES = st.one_of(
    st.none(), st.builds(lambda low, high: {"min": low, "max": high}, st.integers(0, 60), st.integers(0, 200))
)
HEADERS = st.fixed_dictionaries(
    {"name": st.sampled_from(["Host", "X-User", "X-None"])},
    optional={"exact": st.sampled_from(["a", "A.Example", "[::1]"]), "prefix": st.sampled_from(["a", "A.E", "["])},
)
ROUTE_MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "headers": st.lists(HEADERS.filter(lambda header: len(header) == 2), max_size=2),
        "tenants": st.lists(st.sampled_from(["gold", "gold*", "*", "s*"]), max_size=2, unique=True),
        "promptBytes": RANGES,
        "promptTokens": RANGES,
        "hasTools": st.booleans(),
        "hasImages": st.booleans(),
        "hasCode": st.booleans(),
        "time": st.just({"start": "00:01", "end": "00:00"}),  # at any time
    },
)
REFS = st.tuples(st.sampled_from(["a", "b", "c", "gone"]), st.sampled_from(["ModelDeployment", "ModelRoute"]))
TARGETS = st.one_of(st.tuples(REFS), st.tuples(REFS, REFS))
RULES_OF_ROUTES = st.lists(st.tuples(st.lists(ROUTE_MATCHES, max_size=3), TARGETS), min_size=1, max_size=3)
VALUES_OF_FIELDS: dict[str, list[Any]] = {
    "messages": ["a ```b", [], [{"content": [{"type": "image_url"}]}], [{"content": '{"type":"image"}'}], None],
    "tools": [[], {}, None, [{"type": "function"}]],
    "input": ["", "x" * 90, [{"type": "input_image"}]],
    "prompt": ["```", None],
    "query": ["q"],
}


def public_of(listed: list[Any]) -> list[PublicRoute]:
    """ModelRoutes `ns/a`, `ns/b` and so on with these rules."""
    made = []
    for name, rules in zip(NAMES, listed, strict=False):
        written = [
            {
                "name": f"r{n}",
                "matches": matches,
                "backendRefs": [{"name": target, "kind": kind, "weight": 100 // len(refs)} for target, kind in refs],
            }
            for n, (matches, refs) in enumerate(rules)
        ]
        made.append(PublicRoute(name, read(ModelRouteSpec, encoded({"rules": written}))))
    return made


def compare_targets(case: tuple[list[Any], list[tuple[str, str]], str, bytes, str]) -> None:
    """Where Rust decides, Python decides so too. Rust leaves to Python what has no target, and what depends on time."""
    listed, headers, tenant, body, key = case
    routes = {route.name: route for route in public_of(listed)}
    compiled = compile_model_routes(RouteTable({}, {}, {}, model_routes=routes))
    given = [(name, value.encode()) for name, value in headers]
    found = rust(twins.choose_target, compiled, given, tenant, body, key.encode())
    if found == SKIPPED:
        return
    facts = RequestFacts(CIMultiDict(headers), request_fields.parse(body), len(body), tenant)
    chosen = choose_target(routes, routes[NAMES[0]], facts, key)
    if found is not None:
        assert found == (chosen.target, list(chosen.passed))
    elif not any("time" in match for rules in listed for matches, _ in rules for match in matches):
        assert chosen.problem


def vary_targets(case: Any, random: Random) -> Any:
    fields = {name: random.choice(values) for name, values in VALUES_OF_FIELDS.items() if random.random() < 0.4}
    headers = [(name, random.choice(VALUES)) for name in random.choices(["Host", "X-User"], k=random.randint(0, 2))]
    body = json.dumps(fields, separators=random.choice(((",", ":"), (", ", ": ")))).encode()
    return case[0], headers, random.choice(TENANTS), body, random_text(random)


# -- endpoints

REVISIONS = ("v1", "v1-baseline", "v2", "v2-baseline", "v3")
BACKENDS = st.lists(
    st.tuples(st.sampled_from(REVISIONS), st.integers(0, 100)), max_size=4, unique_by=lambda one: one[0]
)
PODS = st.lists(
    st.tuples(st.sampled_from([f"http://10.0.0.{n}:8000" for n in range(6)]), *[st.integers(0, 2)] * 2, st.booleans()),
    max_size=5,
    unique_by=lambda one: one[0],
)


def compare_choice(case: tuple[list[tuple[str, int]], dict[str, Any], str, str, str]) -> None:
    listed, pods, salt, key, avoided = case
    backends = tuple(Backend(revision, weight) for revision, weight in listed)
    route = Route("ns/a", "uid", "m", salt=salt, backends=backends)
    assigned, order = twins.order_backends(listed, salt, key.encode())
    assert (assigned or "") == router.assign_revision(route, key)
    assert [backends[at] for at in order] == list(router.order_backends(route, key))
    here = {revision: sorted(pods.get(revision, ())) for revision, _ in listed}
    every = {pod[0]: pod for found in here.values() for pod in found}
    loads, own = ({url: pod[at] for url, pod in every.items()} for at in (1, 2))
    excluded = {url for url, pod in every.items() if pod[3]}
    here = {revision: [every[pod[0]] for pod in found] for revision, found in here.items()}
    table = RouteTable(
        {"ns/a": route},
        {"m": route},
        {("ns/a", revision): tuple(p[0] for p in found) for revision, found in here.items()},
    )
    chosen = router.pick(table, route, key, LeastLoad(loads, own), excluded, avoided=avoided)
    found = twins.pick(listed, salt, key.encode(), avoided, [here[revision] for revision, _ in listed])
    assert found == ((chosen.revision, chosen.url) if chosen else None)
    for revision, _ in listed:
        for holder in ("", split.tag(here[revision][0][0]) if here[revision] else "0000"):
            one = router.pick_in_revision(
                table, route, revision, key, LeastLoad(loads, own), excluded=excluded, holder=holder
            )
            assert twins.pick_holder(here[revision], key.encode(), holder) == (one.url if one else None)


def vary_choice(case: Any, random: Random) -> Any:
    listed = [
        (revision, random.choice((0, 5, 50, 95, 100))) for revision in random.sample(REVISIONS, random.randint(1, 4))
    ]
    pods = {
        revision: [
            (f"http://10.0.0.{n}:8000", random.randrange(3), random.randrange(2), random.random() < 0.2)
            for n in random.sample(range(6), random.randint(0, 4))
        ]
        for revision, _ in listed
    }
    return listed, pods, case[2], random_text(random), random.choice(("", *REVISIONS))


# -- proofs


class Signers:
    """Both signers, with one key and one clock."""

    def __init__(self, path: Path) -> None:
        path.write_text(json.dumps({"keys": [{"id": "k1", "key": base64.urlsafe_b64encode(b"m" * 32).decode()}]}))
        self.now_s = 0.0
        self.python = TenantSigner(str(path), lambda: self.now_s)
        self.rust = twins.TenantSigner("k1", b"m" * 32)

    def compare(self, case: tuple[str, str, str, float, bytes]) -> None:
        tenant, deployment, weight, self.now_s, client_salt = case
        headers = CIMultiDict({TENANT: tenant, **({WEIGHT: weight} if weight else {})})
        self.python.sign(headers, deployment)
        proof, signature = self.rust.sign(tenant, deployment, weight, self.now_s)
        assert proof == headers[PROOF]
        assert headers.get(WEIGHT, "") == (f"{weight}.{signature}" if weight else "")
        salt = self.rust.cache_salt(tenant, deployment, client_salt)
        assert salt == self.python.cache_salt(tenant, deployment, client_salt)


def test_rust_signs_tenants_as_python_does(tmp_path: Path) -> None:
    """Two thousand tenants in turns, over windows: each proof is made once in a window, and again in the next one."""
    signers, random = Signers(tmp_path / "keys.json"), Random(1)
    tenants = [random_text(random) for _ in range(50)]
    for _ in range(3000):
        deployment = random.choice(("ns/a", "ns/b", "other/a", "no-slash"))
        about = random.choice(tenants), deployment, random.choice(("", "2", "16"))
        signers.compare((*about, random.choice((0.0, 59.9, 60.0, 1.8e9)), random.choice((b"", b"\0" * 32))))


PAIRS = [
    Pair("split", st.tuples(WEIGHTS, TEXTS, TEXTS), compare_split, vary_split),
    Pair("rules", st.tuples(RULES, LISTED), compare_rules, vary_rules),
    Pair(
        "targets",
        st.tuples(
            st.lists(RULES_OF_ROUTES, min_size=1, max_size=3), LISTED, st.sampled_from(TENANTS), st.just(b"{}"), TEXTS
        ),
        compare_targets,
        vary_targets,
    ),
    Pair(
        "choice",
        st.tuples(
            BACKENDS, st.dictionaries(st.sampled_from(REVISIONS), PODS), TEXTS, TEXTS, st.sampled_from(("", *REVISIONS))
        ),
        compare_choice,
        vary_choice,
    ),
]


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_rust_routes_as_python_does(pair: Pair) -> None:
    pair.run(FEW)


@pytest.mark.extended
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_a_million_routes(pair: Pair) -> None:
    pair.run(MILLION)
