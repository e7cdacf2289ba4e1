"""Sampling parameters of any size: never an exception, never a token that the request forbids (safety 1)."""

import math
import socket

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_server.engine.execution.sampler import LEAST_TEMPERATURE, Sampler
from slipway_server.engine.grammars.messages import (
    MAX_GRAMMAR_BYTES,
    PACKET_BYTES,
    Prepare,
    digest_of,
    encode,
    to_grammars,
)
from slipway_server.engine.request import Grammar, Request, Sampled, SamplingParams, Sequence
from slipway_server.engine.validation import validate_request
from slipway_server.kernels.in_torch import TorchKernels

pytestmark = [pytest.mark.integration, pytest.mark.finding(1)]

VOCABULARY = 40
SAMPLER = Sampler(TorchKernels(torch.float32, "cpu"))

ids = st.integers(0, VOCABULARY - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
# Where doubles, and the float32 that tensors turn them into, run out.
edges = st.sampled_from([5e-324, 1e-300, 1e-45, 1e-38, 1e-10, 1.0, 1e10, 3.5e38, 1e300, 1.7e308])
positive = edges | st.floats(min_value=0, exclude_min=True, allow_infinity=False)
shares = edges.filter(lambda x: x <= 1) | st.floats(0, 1)
params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**62),
    temperature=st.just(0.0) | positive,
    top_p=shares,
    top_k=st.integers(0, 2**63 - 1) | st.integers(0, VOCABULARY + 1),
    min_p=shares,
    seed=st.integers(-(2**63), 2**63 - 1),
    frequency_penalty=finite | edges,
    presence_penalty=finite | edges.map(lambda x: -x),
    repetition_penalty=positive,
    logit_bias=st.lists(st.tuples(ids, finite), max_size=4).map(tuple),
    allowed_token_ids=st.just(()) | st.lists(ids, min_size=1, max_size=4).map(tuple),
    bad_words=st.lists(st.lists(ids | st.integers(0, 2**40), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    min_tokens=st.integers(0, 5),
    stop_token_ids=st.lists(ids | st.just(2**40), max_size=4).map(tuple),
    logprobs=st.integers(-1, 5),
)
rows = st.lists(st.floats(-100, 100, width=32), min_size=VOCABULARY, max_size=VOCABULARY)
outputs = st.lists(ids, max_size=6)


def forbidden(p: SamplingParams, output: list[int]) -> set[int]:
    """By the words of the API, written another way than the sampler has it."""
    found = set(range(VOCABULARY)) - set(p.allowed_token_ids) if p.allowed_token_ids else set()
    if len(output) < p.min_tokens:
        found |= set(p.stop_token_ids)
    found |= {word[-1] for word in p.bad_words if [*output, word[-1]][-len(word) :] == list(word)}
    return found & set(range(VOCABULARY))


def sampled(row: list[float], output: list[int], p: SamplingParams) -> Sampled:
    sequence = Sequence(Request("r", (1, 2, 1), p), output=list(output))
    # In a batch with another sequence, which its parameters must not change.
    plain = Sequence(Request("n", (1,), SamplingParams(4, temperature=0.0)))
    result, neighbour = SAMPLER.sample(torch.tensor([row, row]), [sequence, plain])
    assert neighbour.token == max(range(VOCABULARY), key=lambda token: (row[token], -token))
    return result


@pytest.mark.attack_class(18)
@settings(max_examples=300, deadline=None)
@given(rows, outputs, params)
def test_no_parameters_raise_or_bring_out_a_forbidden_token(
    row: list[float], output: list[int], p: SamplingParams
) -> None:
    validate_request(Request("r", (1, 2, 1), p), VOCABULARY)
    result, no = sampled(row, output, p), forbidden(p, output)
    if len(no) == VOCABULARY:
        assert result.no_token_allowed and result.token is None
    else:
        assert not result.no_token_allowed and result.token is not None
        assert result.token in set(range(VOCABULARY)) - no


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1e-45, "top_p": 0.9},
        {"temperature": 1e-45},
        {"repetition_penalty": 1e-300, "top_p": 0.9},
        {"repetition_penalty": 1e-300, "allowed_token_ids": (7,), "temperature": 0.0},
        {"frequency_penalty": 1e308, "presence_penalty": -1e308, "top_p": 0.9},
        {"temperature": 1e308, "allowed_token_ids": (7,), "top_k": 3},
    ],
)
def test_parameters_that_stopped_engines_are_ordinary_requests(parameters: dict[str, float]) -> None:
    result = sampled([float(token) for token in range(VOCABULARY)], [1, 1], SamplingParams(4, **parameters))  # type: ignore[arg-type]
    assert result.token is not None
    assert "allowed_token_ids" not in parameters or result.token == 7


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_rules_that_allow_no_token_end_the_request(temperature: float, top_p: float) -> None:
    p = SamplingParams(9, temperature, top_p, allowed_token_ids=(5,), stop_token_ids=(5,), min_tokens=5)
    assert sampled([0.0] * VOCABULARY, [], p) == Sampled(no_token_allowed=True)
    # From the fifth token on it may stop.
    assert sampled([0.0] * VOCABULARY, [5] * 5, p).token == 5


def test_small_temperatures_are_raised_as_in_vllm() -> None:
    row = torch.linspace(0, 0.05, VOCABULARY).tolist()
    drawn = {
        temperature: [sampled(row, [], SamplingParams(4, temperature, seed=seed)).token for seed in range(50)]
        for temperature in (1e-45, 1e-3, LEAST_TEMPERATURE)
    }
    assert drawn[1e-45] == drawn[1e-3] == drawn[LEAST_TEMPERATURE] and len(set(drawn[1e-45])) > 1


# --- validation of requests -------------------------------------------------------------------------------------------

GOOD: dict[str, object] = {"max_tokens": 4}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(name, math.nan) for name in ("temperature", "top_p", "min_p", "frequency_penalty", "repetition_penalty")],
        *[(name, math.inf) for name in ("temperature", "presence_penalty", "repetition_penalty")],
        ("temperature", -1.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("top_k", 10**25),
        ("max_tokens", 0),
        ("min_tokens", 2**63),
        ("logprobs", -2),
        ("repetition_penalty", 0.0),
        ("logit_bias", ((3, math.nan),)),
        ("logit_bias", ((VOCABULARY, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("allowed_token_ids", (VOCABULARY,)),
        ("stop_token_ids", (-1,)),
        ("bad_words", ((),)),
        ("bad_words", ((-1,),)),
    ],
)
def test_validation_names_the_field_that_the_engine_cannot_compute_with(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} "):
        validate_request(Request("r", (1,), SamplingParams(**GOOD | {field: value})), VOCABULARY)  # type: ignore[arg-type]


@pytest.mark.parametrize("character", ["a", "é", "語", "😀"])
def test_a_grammar_that_is_accepted_fits_a_packet(character: str) -> None:
    """The limit is of bytes: as many characters of several bytes each would not cross the socket."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        length = MAX_GRAMMAR_BYTES // len(character.encode())
        longest, longer = (Grammar("choice", character * count) for count in (length, length + 1))
        validate_request(Request("r", (1,), SamplingParams(4, grammar=longest)), VOCABULARY)
        own.send(encode(Prepare(1, digest_of(longest), longest.kind, longest.text)))
        message = to_grammars.decode(other.recv(PACKET_BYTES))
        assert isinstance(message, Prepare) and message.text == longest.text
        with pytest.raises(ValueError, match=f"^grammar has more than {MAX_GRAMMAR_BYTES} bytes"):
            validate_request(Request("r", (1,), SamplingParams(4, grammar=longer)), VOCABULARY)


@pytest.mark.finding(3)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", (VOCABULARY,)),
        ("prompt", (-1,)),
        ("prompt", ()),
        ("resumed", (2**32,)),
        ("priority", 2**63),
        ("weight", 0.0),
        ("timeout", math.nan),
    ],
)
def test_validation_names_other_fields_too(field: str, value: object) -> None:
    """Token ids are those of the embedding's rows, whatever the tokenizer knows (safety 3)."""
    given_fields = {"prompt": (1,)} | {"timeout_s" if field == "timeout" else field: value}
    with pytest.raises(ValueError, match=f"^{field} "):
        validate_request(Request("r", sampling=SamplingParams(4), **given_fields), VOCABULARY)  # type: ignore[arg-type]
