"""Answers with grammars: valid whatever happens, and no harm to others whatever a client sends."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import psutil
import pytest
import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.beams import BeamRules, BeamSearch
from slipway_server.engine.build import build_engine
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.grammars.compiler import compile_grammar, limit_met, load_tokenizer
from slipway_server.engine.grammars.examples import examples
from slipway_server.engine.messages import Start
from slipway_server.engine.request import FinishReason, Grammar, Logprobs, Request, RequestOutput, SamplingParams
from slipway_server.http.requests.structured import of_schema
from slipway_server.text.tokenizer import Tokenizer
from tests.conftest import MODELS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MODEL = MODELS / "tiny-v1"
STOPS = checkpoint.read(MODEL).stop_token_ids
TOKENIZER = Tokenizer(MODEL)
PROMPT = TOKENIZER.encode_now("And it came to pass in those days, that there went out a decree")

NAME = {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": {
        "type": "object",
        "properties": {"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": {"enum": ["light", "day", None, 7]}, "minItems": 2, "maxItems": 4},
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "boolean"},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                },
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
    },
    "any": {
        "anyOf": [
            {"type": "string", "format": "date"},
            {"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"], "additionalProperties": False},
        ]
    },
    "number": {"type": "number", "exclusiveMinimum": -3, "maximum": 12.5, "multipleOf": 0.5},
    "text": {"type": "string", "minLength": 3, "maxLength": 12},
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def engine() -> Iterator[EngineCore]:
    yield from made()


@pytest.fixture
def narrow() -> Iterator[EngineCore]:
    """Its cache holds two or three sequences: others start over all the time."""
    yield from made(kv_tokens=256)


def made(kv_tokens: int = 4096) -> Iterator[EngineCore]:
    start = Start(
        model=str(MODEL),
        task="generate",
        dtype="float32",
        quantization="none",
        device="cpu",
        context_tokens=512,
        slots=8,
        step_tokens=64,
        step_s=0.0,
        kv_tokens=kv_tokens,
        stop_token_ids=STOPS,
    )
    engine, _ = build_engine(start, threads=1)
    yield engine
    assert engine.masks
    engine.masks.stop()


def schema(name: str) -> Grammar:
    return of_schema(SCHEMAS[name], "response_format", "[ ]")


def request(
    name: str, grammar: Grammar | None, seed: int = 0, *, tokens: int = 160, resumed: tuple[int, ...] = ()
) -> Request:
    params = SamplingParams(tokens, temperature=1.0, seed=seed, stop_token_ids=STOPS, grammar=grammar)
    return Request(name, PROMPT, params, resumed=resumed)


class Answers:
    """What came of requests, by their names."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, RequestOutput] = {}

    def add(self, events: list[RequestOutput]) -> None:
        for event in events:
            if event.token is not None:
                self.tokens.setdefault(event.id, []).append(event.token)
            if event.finish:
                self.ends[event.id] = event

    def text(self, name: str) -> str:
        assert self.ends[name].finish is FinishReason.STOP, self.ends[name]
        return TOKENIZER.decode(self.tokens[name])


def run(engine: EngineCore, requests: list[Request], answers: Answers | None = None) -> Answers:
    answers = answers or Answers()
    for one in requests:
        engine.submit(one)
    deadline_s = time.monotonic() + 120
    while len(answers.ends) < len(requests):
        assert time.monotonic() < deadline_s, "it does not come to an end"
        if engine.look():
            answers.add(engine.step().events)
        else:
            time.sleep(0.001)
    engine.scheduler.check()
    return answers


def check(name: str, text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=jsonschema.FormatChecker())


def test_every_answer_is_valid_in_mixed_batches(engine: EngineCore) -> None:
    plain = [request(f"plain {seed}", None, seed, tokens=12) for seed in range(6)]
    alone = run(engine, plain)
    requests = [request(f"{name} {seed}", schema(name), seed) for seed in range(6) for name in SCHEMAS]
    mixed = [*requests[::2], *plain, *requests[1::2]]
    answers = run(engine, mixed)
    for one in requests:
        check(one.id.split()[0], answers.text(one.id))
    # Who has no grammar gets what it gets alone.
    assert all(answers.tokens[one.id] == alone.tokens[one.id] for one in plain)


def test_a_preemption_changes_no_token(engine: EngineCore, narrow: EngineCore) -> None:
    requests = [request(f"object {seed}", schema("object"), seed, tokens=100) for seed in range(6)]
    expected, answers = run(engine, requests), run(narrow, requests)
    assert narrow.scheduler.preemptions > 0
    assert answers.tokens == expected.tokens


def test_an_answer_goes_on_after_any_of_its_tokens(engine: EngineCore) -> None:
    """As on another pod, which gets the tokens with the request."""
    (whole,) = run(engine, [request("whole", schema("object"), 3)]).tokens.values()
    resumed = [request(f"{cut}", schema("object"), 3, resumed=tuple(whole[:cut])) for cut in range(1, len(whole))]
    answers = run(engine, resumed)
    assert all(whole[:cut] + answers.tokens[f"{cut}"] == whole for cut in range(1, len(whole)))


def test_tokens_that_a_grammar_does_not_allow_cannot_be_resumed(engine: EngineCore) -> None:
    answers = run(engine, [request("forged", schema("object"), resumed=(500, 501))])
    assert answers.ends["forged"].finish is FinishReason.GRAMMAR


@pytest.mark.parametrize("victim", ["worker", "whole"])
def test_the_grammar_process_may_end_at_any_time(engine: EngineCore, victim: str) -> None:
    requests = [request(f"tree {seed}", schema("tree"), seed, tokens=60) for seed in range(4)]
    expected = run(engine, requests)
    answers = Answers()
    for one in requests:
        engine.submit(one)
    kills, steps = 0, 0
    while len(answers.ends) < len(requests):
        if not engine.look():
            time.sleep(0.001)
            continue
        answers.add(engine.step().events)
        steps += 1
        if kills < 3 and steps % 8 == 5 and (found := processes(victim)):
            os.kill(found[0].pid, signal.SIGKILL)
            kills += 1
        assert steps < 50_000
    # A kill while a mask is computed looks as if that grammar had ended the process: its request alone is given up.
    blamed = {name for name, end in answers.ends.items() if end.finish is FinishReason.GRAMMAR}
    assert kills >= 1 and len(blamed) <= (kills if victim == "worker" else 0)
    for name, tokens in expected.tokens.items():
        assert answers.tokens[name] == (tokens[: len(answers.tokens[name])] if name in blamed else tokens)


def processes(kind: str) -> list[psutil.Process]:
    """The process that serves, or the one that forks it."""
    own = [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "slipway_server.engine.grammars.process" in child.cmdline()
    ]
    return own if kind == "whole" else [child for one in own for child in one.children()]


def test_beams_are_valid(engine: EngineCore) -> None:
    # Bounded, so that beams come to an end: they like what repeats.
    grammar = Grammar("regex", "(yes|no|[A-Z][a-z]{2,5}, [0-9]{1,3}\\.)")
    search = BeamSearch(BeamRules(4, 40, frozenset(STOPS)))
    while not search.done:
        steps = []
        for number, beam in enumerate(search.running):
            params = SamplingParams(
                len(beam.tokens) + 1,
                temperature=0.0,
                logprobs=search.rules.alternatives,
                grammar=grammar,
                logprobs_of_allowed=True,
            )
            steps.append(Request(f"b{number}", PROMPT, params, resumed=beam.tokens))
        found: dict[str, Logprobs] = {}
        for one in steps:
            engine.submit(one)
        while len(found) < len(steps):
            if engine.look():
                found |= {event.id: event.logprobs for event in engine.step().events if event.logprobs}
        search.advance([found[one.id] for one in steps])
    texts = [TOKENIZER.decode(list(beam.tokens)) for beam in search.answers]
    assert len(texts) == 4 == len(set(texts))
    assert all(re.fullmatch(grammar.text, text) for text in texts), texts


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar("choice", '["yes", "no (never)", "a.b"]'), r"yes|no \(never\)|a\.b"),
        (Grammar("regex", "[0-9]{3}-[a-f]{2}"), "[0-9]{3}-[a-f]{2}"),
        (Grammar("grammar", 'start: "<" word ("," word)? ">"\nword: /[a-z]{2,4}/'), "<[a-z]{2,4}(,[a-z]{2,4})?>"),
        (Grammar("grammar", 'root ::= item ";"\nitem ::= "x" | [0-9] [0-9]'), "(x|[0-9][0-9]);"),
    ],
)
def test_texts_follow_choices_patterns_and_grammars(engine: EngineCore, grammar: Grammar, pattern: str) -> None:
    answers = run(engine, [request(f"{seed}", grammar, seed) for seed in range(8)])
    assert all(re.fullmatch(pattern, answers.text(f"{seed}")) for seed in range(8))


RULES = 4000
HOSTILE = {
    "prime": of_schema({"type": "integer", "multipleOf": 1000003}, ""),
    "properties": of_schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}}, ""),
    "deep rules": Grammar(
        "grammar",
        "start: r0\n" + "\n".join(f'r{i}: "x" r{(i + 1) % RULES}' for i in range(RULES)),
    ),
    "product": of_schema(
        {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(4)]} for i in range(12)]}, ""
    ),
    "itself": of_schema({"$ref": "#"}, ""),
    "no end": Grammar("grammar", 'start: a\na: "x" a'),
    "nothing": of_schema(False, ""),
    "repetition": Grammar("regex", "(((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000})b"),
    "ambiguous": Grammar("grammar", 'start: e\ne: e e | e e e | "a" | "b" | e e e e'),
    "states": Grammar("regex", "([ab]*a[ab]{40}c|[ab]*b[ab]{39}d){1,90}"),
    "look-ahead": Grammar("regex", "(?=a)b"),
    "elsewhere": of_schema({"$ref": "http://169.254.169.254/latest"}, ""),
    "file": of_schema({"$ref": "file:///etc/passwd"}, ""),
}
MAY_RUN = {"no end", "ambiguous", "states", "repetition", "product", "properties"}  # within the limits of a step


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_harm_nobody(engine: EngineCore, name: str) -> None:
    """Others get their tokens meanwhile, with a grammar or without, and in the end it is refused, or harmless."""
    run(engine, [request("first", schema("object"))])  # loads the tokenizer
    began_s, answers, slowest_s = time.monotonic(), Answers(), 0.0
    engine.submit(request("hostile", HOSTILE[name], tokens=40))
    count = 0
    while "hostile" not in answers.ends or count < 4:
        if f"other {count}" not in answers.tokens:
            grammar = schema("list") if count % 2 else None
            engine.submit(request(f"other {count}", grammar, count, tokens=60))
            answers.tokens[f"other {count}"] = []
        if engine.look():
            step_s = time.monotonic()
            answers.add(engine.step().events)
            slowest_s = max(slowest_s, time.monotonic() - step_s)
        if f"other {count}" in answers.ends:
            assert answers.ends[f"other {count}"].finish in (FinishReason.STOP, FinishReason.LENGTH)
            count += 1
        assert time.monotonic() - began_s < 60, "it is not refused"
    end = answers.ends["hostile"]
    assert name in MAY_RUN or end.finish is FinishReason.GRAMMAR
    assert end.error is None or len(end.error) < 500
    assert slowest_s < 2.0


def many(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(count)}}


TOO_MANY = many(700)
TOO_LARGE = {
    "at once": TOO_MANY,
    "in lists": {"type": "array", "items": TOO_MANY},
    "nested": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": TOO_MANY}}}},
    "behind patterns": {
        "type": "object",
        "required": ["x", "y", "z"],
        "properties": {
            "x": {"type": "string", "minLength": 3},
            "y": {"type": "string", "pattern": "^[a-z]{4,9}$"},
            "z": {"type": "array", "minItems": 1, "items": TOO_MANY},
        },
    },
    "alternatives": {
        "anyOf": [{"type": "object", "properties": {f"p{i}_{j}": {} for j in range(8)}} for i in range(100)]
    },
    "in the third alternative": {"anyOf": [{"type": "string"}, {"type": "null"}, {"properties": {"k": TOO_MANY}}]},
    "after others": {
        "type": "object",
        "properties": {
            **{f"q{i}": {"type": "integer"} for i in range(20)},
            "late": {"type": "array", "items": {"type": "object", "properties": {"deep": TOO_MANY}}},
        },
    },
    "in a tree": {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "fields": TOO_MANY}}},
    },
}


@pytest.mark.finding("F21")
@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_schema_that_would_fail_within_an_answer_is_refused_before_it(engine: EngineCore, name: str) -> None:
    """F21: 300 properties passed the trial, and every answer ended in an error that blamed its tokens."""
    answers = run(engine, [request("large", of_schema(TOO_LARGE[name], ""), tokens=40)])
    end = answers.ends["large"]
    assert end.finish is FinishReason.GRAMMAR and not answers.tokens.get("large")
    assert end.error and "make it smaller" in end.error, end


@pytest.mark.finding("F21")
@pytest.mark.parametrize("schema_of", [many(300), many(600), {"type": "array", "minItems": 2, "items": many(300)}])
def test_a_schema_with_hundreds_of_properties_has_answers(engine: EngineCore, schema_of: dict[str, Any]) -> None:
    answers = run(engine, [request(f"{seed}", of_schema(schema_of, ""), seed, tokens=80) for seed in range(6)])
    assert all(end.finish in (FinishReason.STOP, FinishReason.LENGTH) for end in answers.ends.values()), answers.ends


@pytest.mark.finding("F21")
def test_a_limit_within_an_answer_is_named_and_no_token_is_blamed() -> None:
    """Trials go along examples, not along every answer."""
    tokenizer = load_tokenizer(MODEL / "tokenizer.json", 2048, STOPS)
    matcher = compile_grammar(tokenizer, "json_schema", of_schema(TOO_MANY, "").text)
    assert not matcher.consume_tokens(tokenizer.tokenize_str("{"))
    assert "make it smaller" in limit_met(matcher)
    other = compile_grammar(tokenizer, "choice", '["yes"]')
    assert not other.consume_tokens(tokenizer.tokenize_str("no")) and limit_met(other) == ""


ODD_SCHEMAS: list[Any] = [
    True,
    {},
    {"$ref": ["#"]},
    {"$ref": "#/$defs/none"},
    {"required": [["a"], 3], "properties": {"a": True}},
    {"properties": []},
    {"properties": {"a": 3, "b": None}},
    {"type": ["object", "null"], "properties": {"a": {"enum": []}, "b": {"anyOf": {}}}},
    {"type": "array", "prefixItems": 3, "minItems": 1e9, "items": [1]},
    {"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"const": {"\ud800": "\ud800"}},
]


@pytest.mark.parametrize("schema_of", ODD_SCHEMAS, ids=str)
def test_examples_of_odd_schemas_are_short_texts(schema_of: Any) -> None:
    found = list(examples(json.dumps(schema_of), 4))
    assert len(found) == 4 and all(json.loads(text) is not ... and len(text) < 100_000 for text in found)
