"""A call of gRPC: what the gateway sends is what the server reads."""

import math

from slipway_contracts import protobuf
from slipway_gateway.grpc_api import calls, messages, statuses
from slipway_predict.http.bodies import infer_answer, infer_message
from slipway_predict.http.message_types import ModelInferRequest


def test_both_name_the_same_type() -> None:
    assert calls.PROTOBUF == infer_answer.PROTOBUF


def test_a_deadline_is_read_as_it_was_written() -> None:
    for seconds in (0.001, 0.25, 59.9, 99_999.9, 250_000.0):
        written = statuses.timeout_header(seconds)
        assert math.isclose(infer_message.deadline_of({infer_message.TIMEOUT: written}), seconds, abs_tol=1.0)


def test_the_gateway_finds_the_names_that_the_server_reads() -> None:
    message = ModelInferRequest(model_name="team-a/m", model_version="v1", id="7", raw_input_contents=[bytes(300)])
    found = messages.model_of(message.SerializeToString())
    assert (found.name, found.version, found.request_id) == ("team-a/m", "v1", "7")


def test_what_a_message_may_have_is_bounded_alike() -> None:
    most = b"".join([protobuf.text_field(1, "m")] * protobuf.MAX_FIELDS)
    assert messages.model_of(most).name == "m"
    assert ModelInferRequest.FromString(most).model_name == "m"
