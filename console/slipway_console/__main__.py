"""Composition root: settings → connections to the API server → ports → drain."""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import ssl
import sys
from pathlib import Path

from aiohttp import web

from slipway_process import logs
from slipway_process.network.connections import ConnectionLimit
from slipway_process.network.http_server import HttpRunner, ServerConnection
from slipway_process.network.mutual_tls import UnusableCertificate
from slipway_process.network.port_tls import listener_context

from .access.api_server import ApiServer, open_session
from .access.batches import Batches
from .access.identity_provider import Client, IdentityProvider, open_provider_session
from .serving.app import admin_app, public_app
from .serving.connections import KEEPALIVE_S, TrustedProxies, connection_limit
from .serving.sign_in import CALLBACK
from .settings import ConsoleSettings, UnusableSettings

log = logging.getLogger("slipway_console")
_MAX_HEADER_BYTES = 16_384
_SHUTDOWN_S = 5.0


def main() -> None:
    settings = ConsoleSettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    try:
        asyncio.run(run(settings))
    except (OSError, UnusableCertificate, UnusableSettings) as error:
        sys.exit(f"slipway-console: {error}")


async def run(settings: ConsoleSettings) -> None:
    """Serve pages until SIGTERM or SIGINT.

    Raises:
        OSError: a port is taken, or a file of certificates cannot be read.
        UnusableCertificate: the certificate of the port cannot be used.
        UnusableSettings: some do not go together.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session(settings.api_server_ca_file, settings.api_timeout_s))
        provider = await _provider(settings, stack)
        api = ApiServer(session, settings.api_server, settings.max_api_calls)
        admin = await _listen(
            admin_app(lambda: "shutting down" if stop.is_set() else ""), settings.admin_host, settings.admin_port
        )
        context = listener_context(settings.tls_cert_file, settings.tls_private_key_file)
        # With the same trust and without proxies, as the API server: it gets the same tokens.
        batches = Batches(session, settings.jobs_url) if settings.jobs_url else None
        proxies = TrustedProxies([ipaddress.ip_network(text) for text in settings.trusted_proxies])
        app = public_app(settings, api, provider=provider, batches=batches, proxies=proxies)
        limit = connection_limit(settings.max_connections, proxies)
        public = await _listen(app, settings.host, settings.port, context, limit)
        log.info("listening", extra={"pages": public.addresses, "admin": admin.addresses})
        try:
            await stop.wait()
            log.info("draining")
        finally:
            await public.cleanup()
            await admin.cleanup()


async def _provider(settings: ConsoleSettings, stack: contextlib.AsyncExitStack) -> IdentityProvider | None:
    """The identity provider of the settings.

    Raises:
        OSError: one of its files cannot be read.
        UnusableSettings: a part is missing.
    """
    if not settings.oidc_issuer:
        return None
    if not (settings.oidc_client_id and settings.public_url and "openid" in settings.oidc_scopes):
        raise UnusableSettings("--oidc-issuer needs --oidc-client-id, --public-url, and openid among --oidc-scopes")
    client = Client(
        settings.oidc_issuer,
        settings.oidc_client_id,
        settings.public_url + CALLBACK,
        settings.oidc_scopes,
        _secret(settings.oidc_client_secret_file),
    )
    session = open_provider_session(settings.oidc_ca_file, settings.api_timeout_s)
    return IdentityProvider(await stack.enter_async_context(session), client)


def _secret(file: str) -> str:
    """The text of a file, without the line's end; "" without a file."""
    return Path(file).read_text().strip() if file else ""


async def _listen(
    app: web.Application,
    host: str,
    port: int,
    context: ssl.SSLContext | None = None,
    limit: ConnectionLimit | None = None,
) -> web.AppRunner:
    """Opens a port. `limit`: of its connections."""
    quiet = logging.getLogger("slipway_console.http")
    quiet.setLevel(logging.CRITICAL)
    runner = HttpRunner(
        app,
        limit.connection if limit else ServerConnection,
        keepalive_timeout=KEEPALIVE_S,
        access_log=None,
        logger=quiet,
        handler_cancellation=True,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    await web.TCPSite(runner, host or None, port, backlog=128, ssl_context=context).start()
    return runner


if __name__ == "__main__":
    main()
