"""Runs a request in TGI's shape through the same code as any completion."""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from slipway_process import json_bounds
from slipway_process.byte_order_mark import without_mark

from ..forwarding import bodies
from ..forwarding.stand_ins import collected
from ..forwarding.translation import Run, TranslatedCall, TranslatingWriter
from ..wire import errors, headers
from ..wire.errors import tgi_error
from .completion_request import completion_body, refused
from .generation import (
    MAX_RESPONSE_BYTES,
    GenerationEvents,
    NoCompletion,
    Wanted,
    error_message,
    whole_generation,
    with_tgi_name,
)
from .schema import REQUEST, GenerateRequest, Parameters

GENERATE, GENERATE_STREAM, ROOT = "/generate", "/generate_stream", "/"
# Lists, objects and texts of a body: most of them are those of a grammar.
MAX_THINGS = 1 << 14
_MAX_SHOWN = 500  # characters of what is wrong with a body: names and values of the client's are in it

OnlyModel = Callable[[], Awaitable[str]]


class GenerateCall(TranslatedCall):
    """One request to an endpoint of TGI's. What is read and collected counts in `account`."""

    request_id_header = headers.REQUEST_ID

    async def generate(self, run: Run, endpoint: str, model: str, only_model: OnlyModel) -> web.StreamResponse:
        """A generation, whole or in events. Raises RequestError.

        `run` serves the request of a completion. `endpoint`: of the constants above; `/` has both forms, and returns a
        list. `model`: as the path names it. `only_model`: the one of this gateway, for requests that name none.
        """
        generate_request = await self._read()
        streams = endpoint == GENERATE_STREAM or (endpoint == ROOT and bool(generate_request.stream))
        if endpoint == GENERATE and generate_request.stream:
            raise refused("stream", f"stream is for {ROOT}: send the request to {GENERATE_STREAM}.")
        if model and generate_request.model not in (None, model):
            raise refused("model", "model and the path name two models.")
        model = model or generate_request.model or await only_model()
        body = completion_body(generate_request, model, stream=streams)
        wanted = _wanted(generate_request)
        limit_bytes = min(self._settings.max_body_bytes, MAX_RESPONSE_BYTES)
        writer = TranslatingWriter(limit_bytes, self._request, GenerationEvents(wanted), self._to_client)
        try:
            answer = await self._run(run, "/v1/completions", body, writer)
        except errors.RequestError as refusal:
            refusal.args = (with_tgi_name(refusal.param, str(refusal)),)
            raise
        return writer.out or self._whole(writer, answer, wanted, as_list=endpoint == ROOT)

    async def _read(self) -> GenerateRequest:
        body = await self._read_body(self._request, self._record, self._account)
        await bodies.let_others_run(body)
        try:
            for _ in json_bounds.slices(body, MAX_THINGS, MAX_THINGS):
                await bodies.let_others_run(body)
            return REQUEST.decode(without_mark(body))
        except json_bounds.TooManyValues as error:
            raise refused("inputs", f"The request body {error}.", code="too_many_values") from None
        except msgspec.ValidationError as error:
            message = f"The request body is not as expected: {str(error)[:_MAX_SHOWN]}."
            raise errors.invalid("invalid_type", message, status=422) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"The request body is not valid JSON: {error}."
            raise errors.invalid("invalid_json", message, status=422) from None

    def _whole(
        self, writer: TranslatingWriter, answer: web.StreamResponse, wanted: Wanted, *, as_list: bool
    ) -> web.Response:
        status, crossing, body = collected(writer, answer, self._record.code)
        try:
            body = whole_generation(body, wanted) if status == 200 else tgi_error(status, error_message(body, status))
            if status == 200 and as_list:
                body = b"[" + body + b"]"
        except NoCompletion as error:
            status = 502
            self._record.end("upstream_error", status, "invalid_response")
            body = tgi_error(status, f"The server's answer is not what its API promises: {error}.")
        return web.Response(body=body, status=status, headers=self._to_client(crossing))


def _wanted(generate_request: GenerateRequest) -> Wanted:
    parameters = generate_request.parameters or Parameters()
    return Wanted(
        tuple(parameters.stop or ()),
        parameters.seed,
        bool(parameters.details),
        generate_request.inputs if parameters.return_full_text else None,
    )
