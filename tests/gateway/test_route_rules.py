"""What rules of ModelRoutes say about requests: conditions, times of day, prompts, sampling, and the routes file."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.model_routes.references import chain_problem
from slipway_contracts.model_routes.rules import explain, is_within, select, tokens_of, why_not
from slipway_contracts.model_routes.spec import (
    DAYS,
    RouteMatch,
    RouteSampling,
    RouteTime,
)
from slipway_gateway.routing.routes_file import parse
from slipway_gateway.routing.table import Problem
from slipway_gateway.wire import model_names, prompts, request_fields, sampling

from .test_model_routes import Facts, rest, rule, spec


def match(**fields: Any) -> RouteMatch:
    return read(RouteMatch, encoded(fields))


@pytest.mark.parametrize(
    ("condition", "facts", "why"),
    [
        ({}, {}, ""),
        ({"headers": [{"name": "x-a", "exact": "1"}]}, {"headers": {"x-a": "1"}}, ""),
        ({"headers": [{"name": "x-a", "exact": "1"}]}, {"headers": {"x-a": "11"}}, "header x-a is not 1"),
        ({"headers": [{"name": "x-a", "prefix": "1"}]}, {"headers": {"x-a": "11"}}, ""),
        ({"headers": [{"name": "x-a", "prefix": "2"}]}, {}, "header x-a does not begin with 2"),
        ({"headers": [{"name": "Host", "exact": "A.example"}]}, {"headers": {"Host": "a.EXAMPLE:80"}}, ""),
        ({"tenants": ["team-a"]}, {"tenant": "team-a"}, ""),
        ({"tenants": ["team-*", "x"]}, {"tenant": "team-b"}, ""),
        ({"tenants": ["*"]}, {}, "it has no tenant"),
        ({"tenants": ["team-a"]}, {"tenant": "team-ab"}, "tenant team-ab is none of team-a"),
        ({"promptBytes": {"max": 8}}, {"prompt_bytes": 8}, ""),
        (
            {"promptBytes": {"min": 1, "max": 8}},
            {"prompt_bytes": 9},
            "its prompt has 9 bytes, not at least 1 and at most 8",
        ),
        ({"promptTokens": {"min": 3}}, {"prompt_bytes": 9}, ""),
        ({"promptTokens": {"min": 3}}, {"prompt_bytes": 8}, "its prompt has about 2 tokens, not at least 3"),
        ({"hasTools": True}, {}, "it has no tools"),
        ({"hasImages": False}, {"has_images": True}, "it has images"),
        ({"hasCode": True, "hasTools": False}, {"has_code": True}, ""),
        ({"time": {"start": "12:00", "end": "12:00"}}, {}, ""),
        ({"time": {"start": "12:01"}}, {}, "it is not from 12:01 to 23:59 in UTC"),
        ({"time": {"days": ["Tue"]}}, {}, "it is not from 00:00 to 23:59 on Tue in UTC"),
        ({"time": {"timeZone": "Nowhere/Atlantis"}}, {}, "time zone Nowhere/Atlantis is not known"),
    ],
)
def test_a_condition_holds_or_says_why_it_does_not(condition: dict[str, Any], facts: dict[str, Any], why: str) -> None:
    assert why_not(match(**condition), Facts(**facts)) == why


CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "tenants": st.lists(st.sampled_from(["a", "b", "a*"]), min_size=1, max_size=2, unique=True),
        "promptBytes": st.fixed_dictionaries({"min": st.integers(0, 5)}),
        "hasTools": st.booleans(),
        "hasCode": st.booleans(),
    },
)
FACTS = st.builds(
    Facts,
    tenant=st.sampled_from(["", "a", "b", "ab"]),
    prompt_bytes=st.integers(0, 6),
    has_tools=st.booleans(),
    has_code=st.booleans(),
)


@given(st.lists(st.lists(CONDITIONS, min_size=1, max_size=3), min_size=1, max_size=6), FACTS)
def test_the_first_rule_that_fits_decides_and_explain_says_the_same(
    rules: list[list[dict[str, Any]]], facts: Facts
) -> None:
    route = spec(
        *({"name": f"r{n}", "matches": matches, "backendRefs": [{"name": "x"}]} for n, matches in enumerate(rules)),
    )
    fitting = [one for one in route.rules if any(why_not(each, facts) == "" for each in one.matches)]
    chosen = select(route.rules, facts)
    assert chosen == (fitting[0] if fitting else None)
    explained = list(explain(route.rules, facts))
    assert [one.rule for one in explained if not one.reasons] == fitting[:1]
    assert all(all(one.reasons) for one in explained if one.reasons)
    assert len(explained) == (route.rules.index(fitting[0]) + 1 if fitting else len(route.rules))


MINUTES = st.integers(0, 24 * 60 - 1)


@given(MINUTES, MINUTES, st.integers(0, 7 * 24 * 60 - 1), st.sets(st.sampled_from(DAYS)))
def test_times_are_the_minutes_from_start_to_end_of_the_days_on_which_they_begin(
    start: int, end: int, minute: int, days: set[str]
) -> None:
    def clock(value: int) -> str:
        return f"{value // 60:02}:{value % 60:02}"

    monday = datetime(2026, 11, 30, tzinfo=UTC)
    times = RouteTime(start=clock(start), end=clock(end), days=tuple(sorted(days)))
    length = (end - start) % (24 * 60) + 1
    begins = [day * 24 * 60 + start for day in range(-1, 7) if not days or DAYS[day % 7] in days]
    expected = any(begin <= minute < begin + length for begin in begins)
    assert is_within(times, monday + timedelta(minutes=minute)) == expected


def test_times_follow_the_clock_of_their_zone_through_the_change_of_summer_time() -> None:
    office = RouteTime(start="09:00", end="16:59", timeZone="Europe/Berlin")
    for month, hours in ((1, (8, 16)), (7, (7, 15))):
        first, after = (datetime(2026, month, 15, hour, tzinfo=UTC) for hour in hours)
        assert is_within(office, first) and not is_within(office, first - timedelta(minutes=1))
        assert is_within(office, after - timedelta(minutes=1)) and not is_within(office, after)


# --- circles


ROUTES = st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdefx")), max_size=6)


@given(ROUTES)
def test_chains_are_followed_as_far_as_four_routes(graph: dict[str, set[str]]) -> None:
    def ref(name: str) -> dict[str, Any]:
        return rule(f"r{name}", name, hasTools=True) | {"backendRefs": [{"name": name, "kind": "ModelRoute"}]}

    specs = {f"p/{name}": spec(*map(ref, sorted(targets)), rest("end")) for name, targets in graph.items()}

    def longest(name: str, passed: tuple[str, ...]) -> float:
        if name in passed:
            return float("inf")
        below = [longest(target, (*passed, name)) for target in graph.get(name, ())]
        return 1 + max(below, default=0)

    for name in graph:
        reason, message = chain_problem(f"p/{name}", specs)
        assert bool(reason) == (longest(name, ()) > 4), (reason, message)
        assert bool(reason) == bool(message)


# --- prompts, sampling, names


def fields(**body: Any) -> request_fields.RequestFields:
    return request_fields.parse(json.dumps(body).encode())


def test_what_a_prompt_has_is_what_its_members_are() -> None:
    quoted = fields(model="m", messages=[{"content": '{"type": "image_url"} and `a`'}])
    assert not prompts.has_images(quoted) and not prompts.has_code(quoted) and not prompts.has_tools(quoted)
    assert prompts.has_images(fields(model="m", input=[{"content": [{"type": "input_image"}]}]))
    assert prompts.has_code(fields(model="m", instructions="```\nx\n```"))
    assert prompts.has_tools(fields(model="m", tools=[{}])) and not prompts.has_tools(fields(model="m", tools=None))
    assert prompts.prompt_bytes(fields(model="m", prompt="abcd"), 99) == 6
    assert prompts.prompt_bytes(fields(model="m"), 99) == 99 and tokens_of(99) == 25


NUMBERS = (
    st.none() | st.integers(-5, 300) | st.floats(-3, 300, allow_nan=False) | st.sampled_from(["7", "250", "x", True])
)
CAP, DEFAULT = 100, 40
TOKEN_FIELDS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
}


@given(
    st.sampled_from(sorted(TOKEN_FIELDS)),
    st.dictionaries(
        st.sampled_from(["temperature", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "seed"]),
        NUMBERS,
    ),
)
def test_no_number_passes_its_cap_and_nothing_else_changes(path: str, written: dict[str, Any]) -> None:
    imposed = read(
        RouteSampling, encoded({"defaults": {"maxTokens": DEFAULT, "temperature": 0.5}, "caps": {"maxTokens": CAP}})
    )
    body = json.dumps({"model": "m", **written}).encode()
    now, names = json.loads(sampling.impose(body, path, [imposed])), TOKEN_FIELDS[path]
    limits = [now[name] for name in names if now.get(name) is not None]
    assert limits, "a request without a limit gets one"
    for limit in limits:
        assert limit in ("x", True) or 0 < float(limit) <= CAP
    if all(written.get(name) is None for name in names):
        assert now[names[0]] == DEFAULT
    assert now["temperature"] == (0.5 if written.get("temperature") is None else written["temperature"])
    for name, value in written.items():
        is_free = name not in (*names, "temperature")
        if is_free or (name in names and type(value) is int and 0 < value <= CAP):
            assert now[name] == value


def test_of_two_defaults_the_first_counts_and_of_two_caps_the_lower_one() -> None:
    outer = read(RouteSampling, encoded({"defaults": {"topP": 0.5}, "caps": {"maxTokens": 200, "topK": 5}}))
    inner = read(RouteSampling, encoded({"defaults": {"topP": 0.9}, "caps": {"maxTokens": 100}}))
    body = sampling.impose(b'{"top_k":-1}', "/v1/completions", [outer, inner])
    assert json.loads(body) == {"top_k": 5, "top_p": 0.5, "max_tokens": 100}
    same = b'{"a":1}'
    assert sampling.impose(same, "/v1/completions", [RouteSampling()]) is same


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=12) | st.just('"model":"x"'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "response", "a"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["model", "response", "id"]), JSON, max_size=3), st.text(min_size=1, max_size=12)
)
def test_only_the_name_of_the_model_changes(written: dict[str, Any], name: str) -> None:
    def expected(part: dict[str, Any]) -> dict[str, Any]:
        changed = dict(part)
        if isinstance(part.get("model"), str):
            changed["model"] = name
        if isinstance(part.get("response"), dict):
            changed["response"] = expected(part["response"])
        return changed

    body = json.dumps(written).encode()
    assert json.loads(model_names.renamed(body, name)) == expected(written)
    events = b"id: 1\nevent: x\ndata: " + body + b"\n\n: model\n\ndata: [DONE]\n\n"
    lines = model_names.renamed_events(events, name).split(b"\n")
    assert json.loads(lines[2].removeprefix(b"data: ")) == expected(written)
    assert lines[:2] + lines[3:] == events.split(b"\n")[:2] + events.split(b"\n")[3:]


def test_what_is_no_json_keeps_its_bytes() -> None:
    for body in (b'{"model": ', b'["model"]', b'"model"', b'{"model": "a"', msgspec.json.encode({"x": '"model"'})):
        assert model_names.renamed(body, "n") == body


# --- the routes file

FILE = """
models:
  small: {backends: [{endpoints: ["http://127.0.0.1:1"]}]}
  large: {backends: [{endpoints: ["http://127.0.0.1:2"]}]}
modelRoutes:
  chat:
    aliases: [gpt-4o]
    rules:
    - name: tools
      matches: [{hasTools: true, promptTokens: {min: 100}}]
      backendRefs: [{name: large}]
    - name: rest
      backendRefs: [{name: small, weight: 90}, {name: large, weight: 10}]
"""


def test_a_file_has_model_routes_too() -> None:
    table = parse(FILE, 1)
    assert not isinstance(table, Problem), table
    assert sorted(table.public) == ["chat", "gpt-4o"]
    (tools, last), found = table.public["chat"].spec.rules, table.public["chat"].name
    assert found == "file/chat" and tools.matches[0].has_tools and last.backend_refs[0].weight == 90


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("name: large}]", "name: huge}]", "model route chat: its target huge is no model of the file"),
        ("weight: 10", "weight: 11", "rules[1].backendRefs: the weights are 101 together"),
        ("[gpt-4o]", "[small]", "model route chat: the name small is that of a model of the file, too"),
        ("hasTools: true", "hasTool: true", "hasTool"),
        ("{name: large}]", "{name: chat, kind: ModelRoute}]", "rules lead in a circle: file/chat to file/chat"),
        ("min: 100", "min: many", "promptTokens.min"),
        ("matches: [{hasTools: true, promptTokens: {min: 100}}]", "matches: []", "write it last"),
        ("name: rest", "name: tools", "two have the same name"),
        ("{min: 100}", "{}", "rules[0].matches[0].promptTokens: a range has a bound"),
        ("hasTools: true", "headers: [{name: X-Api-Key, exact: a}]", "rules do not match credentials"),
        ("hasTools: true", "headers: [{name: X, exact: a, prefix: b}]", "write one of them"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused_by_what_is_wrong(before: str, after: str, problem: str) -> None:
    refused = parse(FILE.replace(before, after, 1), 1)
    assert isinstance(refused, Problem) and problem in refused.text, refused
