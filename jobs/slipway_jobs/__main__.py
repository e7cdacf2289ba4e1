"""Composition root: settings → database → ports → the dispatcher's loop → drain."""

import asyncio
import contextlib
import logging
import signal
import sys
import uuid
from collections.abc import Sequence

from aiohttp import web

from slipway_contracts.passes import PassKeys
from slipway_process import logs
from slipway_process.network.http_server import HttpRunner
from slipway_process.network.listed_hosts import ListedHosts
from slipway_process.sealing import Keyring
from slipway_process.supervisor import OnFailure, Supervisor

from .dispatch.dispatcher import Dispatcher
from .dispatch.gateway_calls import open_calls
from .dispatch.validation import Validator
from .object_stores.listed import StoreList
from .serving.app import admin_app, public_app
from .serving.batch_list import BatchLists
from .serving.batches_api import BatchesApi
from .serving.callbacks import Callbacks
from .serving.conversations_api import ConversationsApi
from .serving.files_api import FilesApi
from .serving.idempotency import LEASE_S, IdempotentRequests
from .serving.jobs_api import JobsApi
from .serving.object_inputs import ObjectInputs
from .serving.turns_api import TurnsApi
from .serving.upload import Uploads
from .serving.viewers import open_viewers
from .settings import JobsSettings
from .store.batch_store import BatchStore
from .store.conversation_store import ConversationStore
from .store.conversation_usage import ConversationLimits
from .store.database import Database
from .store.delivery_store import DeliveryStore
from .store.file_store import FileStore
from .store.key_store import KeyStore
from .store.line_store import LineStore
from .telemetry import JobsMetrics
from .webhooks.deliverer import Deliverer
from .webhooks.receivers import Receivers
from .webhooks.signing import parse_secrets

log = logging.getLogger("slipway_jobs")
_MAX_HEADER_BYTES = 16_384


def main() -> None:
    settings = JobsSettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    try:
        url, most_bytes = settings.database_url.get_secret_value(), settings.max_database_bytes
        database = Database(url, most_bytes, erases=settings.conversations)
    except ValueError as error:
        sys.exit(f"slipway-jobs: --database-url: {error}")
    try:
        keyring = Keyring(settings.sealing_keys_file)
    except ValueError as error:
        sys.exit(f"slipway-jobs: --sealing-keys-file: {error}")
    try:
        secrets = parse_secrets(settings.webhook_secret.get_secret_value())
    except ValueError as error:
        sys.exit(f"slipway-jobs: --webhook-secret: {error}")
    try:
        StoreList(settings.object_stores_file).check()
    except ValueError as error:
        sys.exit(f"slipway-jobs: --object-stores-file: {error}")
    if settings.webhook_hosts and not secrets:
        sys.exit("slipway-jobs: --webhook-hosts needs --webhook-secret")
    try:
        sys.exit(asyncio.run(run(settings, database, secrets, keyring)))
    except OSError as error:
        sys.exit(f"slipway-jobs: {error}")


async def run(settings: JobsSettings, database: Database, secrets: Sequence[bytes], keyring: Keyring) -> int:
    """Serves files and batches until SIGTERM or SIGINT; returns the exit code of the process.

    Raises:
        OSError: a port is taken, or the file of certificates cannot be read.
    """
    metrics, keys, owner = JobsMetrics(), PassKeys(settings.keys_file), uuid.uuid4().hex
    files, lease_s = FileStore(database, settings.max_tenant_bytes, keyring), min(LEASE_S, settings.lease_s)
    batches, lines = _stores(settings, database, owner, keyring)
    conversations = conversation_store_of(settings, database, keyring)
    keys_seen = KeyStore(database, settings.max_tenant_idempotency_keys, settings.idempotency_key_retention_s, lease_s)

    async def purge() -> int:
        gone = await database.call(files.purge)
        gone += await database.call(batches.purge, settings.retention_s)
        gone += await database.call(conversations.purge) if settings.conversations else 0
        return gone + await database.call(keys_seen.purge)

    async with contextlib.AsyncExitStack() as stack:
        calls = await stack.enter_async_context(open_calls(settings, keys))
        opening = open_viewers(settings.viewers_api_server, settings.viewers_api_server_ca_file)
        viewers = await stack.enter_async_context(opening)
        validator = Validator(settings, database, files, batches, owner)
        dispatcher = Dispatcher(settings, database, lines, calls, validator, metrics, purge=purge)
        uploads, webhooks, wake = Uploads(settings, database, files), DeliveryStore(database), dispatcher.wake
        objects = ObjectInputs(settings, uploads, StoreList(settings.object_stores_file))
        receivers = Receivers(ListedHosts(settings.webhook_hosts))
        callbacks = Callbacks(database, webhooks, receivers, secrets)
        idempotent = IdempotentRequests(database, keys_seen, lease_s)
        deliverer = Deliverer(database, webhooks, receivers, secrets, metrics)
        routes = [
            *FilesApi(settings, database, files, uploads, idempotent, metrics).routes(),
            *BatchesApi(settings, database, batches, files, callbacks, idempotent, wake, objects=objects).routes(),
            *callbacks.routes(),
            *(BatchLists(database, batches, viewers).routes() if viewers else ()),
            *(conversation_routes(database, conversations, metrics) if settings.conversations else ()),
            *JobsApi(settings, database, batches, uploads, callbacks, idempotent, wake).routes(),
        ]

        stop = asyncio.Event()
        tasks = Supervisor(metrics.task_restarted, stop.set)

        def trouble() -> str:
            if dispatcher.draining:
                return "shutting down"
            return dispatcher.trouble or tasks.trouble or ("" if keys.known else "the release's keys are not there yet")

        admin = await _listen(admin_app(metrics, trouble), settings.admin_host, settings.admin_port)
        public = await _listen(public_app(routes, keys, metrics), settings.host, settings.port)
        log.info("listening", extra={"api": public.addresses, "admin": admin.addresses})
        if secrets:
            tasks.start("webhooks", deliverer.run)
        running = tasks.start("dispatcher", dispatcher.run, OnFailure.EXIT, ends=True)
        try:
            await _until(stop, settings, dispatcher, running, public)
            return int(bool(tasks.gave_up))
        finally:
            await tasks.close()
            await admin.cleanup()
            database.close()


def _stores(settings: JobsSettings, database: Database, owner: str, keyring: Keyring) -> tuple[BatchStore, LineStore]:
    """Opens the stores of batches and of their lines. `owner`: id of this process."""
    kept = settings.max_tenant_result_bytes
    batches = BatchStore(
        database,
        settings.max_tenant_batches,
        settings.completion_window_s,
        settings.max_tenant_webhooks,
        max_tenant_result_bytes=kept,
        keyring=keyring,
    )
    lines = LineStore(
        database,
        owner,
        settings.lease_s,
        settings.retention_s,
        max_attempts=settings.max_attempts,
        max_tenant_result_bytes=kept,
        keyring=keyring,
    )
    return batches, lines


def conversation_store_of(settings: JobsSettings, database: Database, keyring: Keyring) -> ConversationStore:
    """The store of conversations, within the bounds of the settings."""
    limits = ConversationLimits(
        settings.max_tenant_conversations,
        settings.max_tenant_items,
        settings.max_tenant_conversation_bytes,
        settings.max_conversation_items,
        settings.max_context_bytes,
    )
    keep_s, idle_s = settings.conversation_retention_s, settings.conversation_idle_s
    return ConversationStore(database, limits, keyring, keep_s=keep_s, idle_s=idle_s)


def conversation_routes(database: Database, store: ConversationStore, metrics: JobsMetrics) -> list[web.RouteDef]:
    """The paths of conversations: those of clients, and those of gateways."""
    return [*ConversationsApi(database, store, metrics).routes(), *TurnsApi(database, store, metrics).routes()]


async def _until(
    stop: asyncio.Event,
    settings: JobsSettings,
    dispatcher: Dispatcher,
    running: "asyncio.Task[None]",
    public: web.AppRunner,
) -> None:
    """Serves until a signal, or until `stop` is set, and drains."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    log.info("draining")
    dispatcher.draining = True
    dispatcher.wake()
    await asyncio.sleep(settings.drain_delay_s)
    await public.cleanup()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.drain_timeout_s):
            await running
    await dispatcher.close()
    log.info("drained")


async def _listen(app: web.Application, host: str, port: int) -> web.AppRunner:
    quiet = logging.getLogger("slipway_jobs.http")
    quiet.setLevel(logging.CRITICAL)
    runner = HttpRunner(
        app,
        access_log=None,
        logger=quiet,
        handler_cancellation=True,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        shutdown_timeout=5.0,
    )
    await runner.setup()
    await web.TCPSite(runner, host or None, port, backlog=256).start()
    return runner


if __name__ == "__main__":
    main()
