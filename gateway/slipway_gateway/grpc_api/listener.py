"""The gRPC port: bounded calls and messages, TLS with the API port's certificate, and an end that cuts no call."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from ..balancing.published_table import PublishedTable
from ..serving.api import PublicApi
from ..serving.inference import InferenceServer
from ..serving.tls import LOOK_AGAIN_S, OPTIONAL, TlsFiles
from ..settings import GatewaySettings
from ..wire import errors
from .health import CHECK, HEALTH, WATCH, GrpcHealth
from .methods import SERVICE, UNARY, Context, Methods, refuse
from .streams import NAME as STREAM
from .streams import InferStream

log = logging.getLogger(__name__)

_STREAMS_OF_CONNECTION = 1024
# Calls beyond `max_inflight` that the library takes, so that the API can count and refuse them itself.
_MORE_CALLS = 256
# What a stream may send before its call reads it.
_LOOKAHEAD_BYTES = 64 << 10
_KEEPALIVE_MS, _LEAST_PING_MS = 60_000, 10_000
_FAREWELL_S = 10.0
# The library varies the age of a connection by a tenth. `_LEARNED_S`: the time that GOAWAY takes to reach a client,
# which then begins no more calls on the connection.
_AGE_SPREAD, _LEARNED_S = 1.1, 0.5
_IDENTITY_ALONE = 1  # bit set of compressions that are taken: none, for a message may grow a thousandfold when unpacked


class GrpcServer:
    """The gRPC port of one gateway."""

    def __init__(self, api: PublicApi, published: PublishedTable, settings: GatewaySettings) -> None:
        """Raises OSError, ValueError: the port, or the certificate, cannot be used."""
        self._methods = Methods(api, settings, InferenceServer(published))
        self._settings = settings
        self._server = aio.server(
            options=_options(settings), maximum_concurrent_rpcs=settings.max_inflight + _MORE_CALLS
        )
        self._server.add_generic_rpc_handlers((_Services(self._methods, GrpcHealth(self._methods, published)),))
        address = f"{_host(settings.host)}:{settings.grpc_port}"
        tls = _credentials(settings)
        try:
            add = self._server.add_secure_port if tls else self._server.add_insecure_port
            self.port = int(add(address, tls) if tls else add(address))
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {address}: {error}") from None

    async def start(self) -> None:
        await self._server.start()
        log.info("taking gRPC calls", extra={"port": self.port})

    async def drain(self) -> None:
        """Returns when all connections got GOAWAY and all calls have ended.

        When the library stops, it cancels calls that clients begin before they have received GOAWAY. So it is stopped
        only when every connection has reached its age, at which GOAWAY costs no call; until then calls are served.
        """
        if self._methods.has_served:
            age_s = self._settings.grpc_connection_age_s * _AGE_SPREAD + _LEARNED_S
            await asyncio.sleep(min(age_s, self._settings.drain_timeout_s / 2))
        if not self._methods.ending.done():
            self._methods.ending.set_result(None)
        # The API ends what runs for longer, with a status; the library would cancel it without one.
        await self._server.stop(self._settings.drain_timeout_s + _FAREWELL_S)

    async def close(self) -> None:
        """Cancels the calls that still run."""
        self._methods.cutting = True
        await self._server.stop(0)


def _options(settings: GatewaySettings) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ALONE),
        ("grpc.max_concurrent_streams", _STREAMS_OF_CONNECTION),
        ("grpc.max_metadata_size", settings.max_header_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
        ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.server_handshake_timeout_ms", int(settings.header_timeout_s * 1000)),
        ("grpc.max_connection_age_ms", max(1, int(settings.grpc_connection_age_s * 1000))),
        ("grpc.max_connection_idle_ms", max(1, int(settings.keepalive_timeout_s * 1000))),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _LEAST_PING_MS),
    ]


def _host(host: str) -> str:
    if not host:
        return "[::]"
    return f"[{host}]" if ":" in host else host


def _credentials(settings: GatewaySettings) -> grpc.ServerCredentials | None:
    """The TLS credentials of the port; None without a certificate. Raises OSError, ValueError: they cannot be used."""
    if not settings.tls_cert_file:
        return None
    if settings.tls_min_version != "1.2":
        raise ValueError("gRPC takes TLS 1.2 and 1.3: set --tls-min-version 1.2, or --grpc-port 0")
    if settings.tls_client_ca_file and settings.tls_client_auth == OPTIONAL:
        raise ValueError(
            "gRPC cannot take certificates of some clients: set --tls-client-auth required, or --grpc-port 0"
        )
    files = TlsFiles(settings.tls_cert_file, settings.tls_private_key_file, settings.tls_client_ca_file)
    reload = _Reload(files)
    return grpc.dynamic_ssl_server_credentials(
        reload.first, reload.next, require_client_authentication=bool(files.client_ca)
    )


class _Reload:
    """Reads the certificate again when its files change. The library calls `next` from threads of its own."""

    def __init__(self, files: TlsFiles) -> None:
        self._files, self._lock = files, threading.Lock()
        self._signature, self._looked_s = files.signature(), time.monotonic()
        self.first = self._load()

    def next(self) -> Any:
        """The certificate for the next handshake; None: the last one stays."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_s < LOOK_AGAIN_S:
                return None
            self._looked_s = now_s
            try:
                signature = self._files.signature()
                if signature == self._signature:
                    return None
                found = self._load()
            except (OSError, ValueError):
                return None  # the API port logs it
            self._signature = signature
            return found

    def _load(self) -> Any:
        """Reads the files. Raises OSError, ValueError: the API port does not take them either."""
        files = self._files
        files.load()
        pair = (Path(files.private_key).read_bytes(), Path(files.certificate).read_bytes())
        ca = Path(files.client_ca).read_bytes() if files.client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=ca)


class _Services(grpc.GenericRpcHandler):  # type: ignore[misc]  # the library has no annotations
    """Finds the handler of a method. All methods are handled as bidirectional streams, which look the same on the wire.

    So a call begins, and is authenticated, before its message is read. And the gateway can give up on a client that
    does not read its response, for which the library has no way in handlers of one response.
    """

    def __init__(self, methods: Methods, health: GrpcHealth) -> None:
        self._methods = methods
        self._known = {
            f"/{HEALTH}/{CHECK}": _handler(health.check),
            f"/{HEALTH}/{WATCH}": _handler(health.watch),
            f"/{SERVICE}/{STREAM}": _handler(lambda context: InferStream(methods, context).run()),
        }
        for name in UNARY:
            self._known[f"/{SERVICE}/{name}"] = _handler(partial(methods.unary, name))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        return self._known.get(method) or _handler(partial(self._unimplemented, method))

    async def _unimplemented(self, method: str, context: Context) -> None:
        served = ", ".join((*UNARY, STREAM))
        message = f"{method[:200]} is not served: this gateway has {SERVICE} with {served}, and {HEALTH}."
        call = self._methods.call(context, "/unimplemented")
        refusal = errors.invalid("unimplemented", message, status=501)
        self._methods.api.refuse(refusal, call.request)
        refuse(context, refusal.status, message)


def _handler(run: Callable[[Context], Awaitable[None]]) -> grpc.RpcMethodHandler:
    async def behave(_: Any, context: Context) -> None:
        try:
            await run(context)
        except Exception:
            log.exception("a call failed inside of the gateway")
            refuse(context, 500, str(errors.internal()))

    return grpc.stream_stream_rpc_method_handler(behave)
