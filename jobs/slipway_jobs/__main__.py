"""Composition root: settings → database → ports → the dispatcher's loop → drain."""

import asyncio
import contextlib
import logging
import signal
import sys
import uuid

from aiohttp import web

from slipway_process import logs
from slipway_process.passes import PassKeys

from .dispatch.dispatcher import Dispatcher
from .dispatch.gateway_calls import open_calls
from .dispatch.validation import Validator
from .serving.app import admin_app, public_app
from .serving.batches_api import BatchesApi
from .serving.files_api import FilesApi
from .serving.jobs_api import JobsApi
from .serving.upload import Uploads
from .settings import JobsSettings
from .store.batch_store import BatchStore
from .store.database import Database
from .store.file_store import FileStore
from .store.line_store import LineStore
from .telemetry import JobsMetrics

log = logging.getLogger("slipway_jobs")
_MAX_HEADER_BYTES = 16_384


def main() -> None:
    settings = JobsSettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    try:
        database = Database(settings.database_url.get_secret_value(), settings.max_database_bytes)
    except ValueError as error:
        sys.exit(f"slipway-jobs: --database-url: {error}")
    try:
        asyncio.run(run(settings, database))
    except OSError as error:
        sys.exit(f"slipway-jobs: {error}")


async def run(settings: JobsSettings, database: Database) -> None:
    """Until SIGTERM.

    Raises:
        OSError: a port is taken, or the file of certificates cannot be read.
    """
    metrics, keys, owner = JobsMetrics(), PassKeys(settings.keys_file), uuid.uuid4().hex
    files = FileStore(database, settings.max_tenant_bytes)
    batches = BatchStore(database, settings.max_tenant_batches, settings.completion_window_s)
    lines = LineStore(database, owner, settings.lease_s, settings.retention_s, max_attempts=settings.max_attempts)

    async def purge() -> int:
        gone = await database.call(files.purge)
        return gone + await database.call(batches.purge, settings.retention_s)

    async with open_calls(settings, keys) as calls:
        validator = Validator(settings, database, files, batches, owner)
        dispatcher = Dispatcher(settings, database, lines, calls, validator, metrics, purge=purge)
        uploads = Uploads(settings, database, files)
        routes = [
            *FilesApi(settings, database, files, uploads, metrics).routes(),
            *BatchesApi(settings, database, batches, files, dispatcher.wake).routes(),
            *JobsApi(settings, database, batches, uploads, dispatcher.wake).routes(),
        ]

        def trouble() -> str:
            if dispatcher.draining:
                return "shutting down"
            return dispatcher.trouble or ("" if keys.known else "the release's keys are not there yet")

        admin = await _listen(admin_app(metrics, trouble), settings.admin_host, settings.admin_port)
        public = await _listen(public_app(routes, keys, metrics), settings.host, settings.port)
        log.info("listening", extra={"api": public.addresses, "admin": admin.addresses})
        try:
            await _until_signalled(settings, dispatcher, public)
        finally:
            await admin.cleanup()
            database.close()


async def _until_signalled(settings: JobsSettings, dispatcher: Dispatcher, public: web.AppRunner) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running = asyncio.create_task(dispatcher.run())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if running.done():
        await running  # it failed: the process ends with the reason
    log.info("draining")
    dispatcher.draining = True
    dispatcher.wake()
    await public.cleanup()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.drain_timeout_s):
            await running
    await dispatcher.close()
    log.info("drained")


async def _listen(app: web.Application, host: str, port: int) -> web.AppRunner:
    quiet = logging.getLogger("slipway_jobs.http")
    quiet.setLevel(logging.CRITICAL)
    runner = web.AppRunner(
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
