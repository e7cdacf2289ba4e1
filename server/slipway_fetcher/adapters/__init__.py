"""The container beside an engine with adapters: fetches those of a file, has the engine load them, and reports.

`follow` is the loop; it runs slipway-fetcher for each entry, so that a download has a process of its own.
"""

import asyncio
import logging
import signal
import sys
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from slipway_contracts.adapters import ADAPTERS_PORT
from slipway_process import logs
from slipway_process.settings import ProcessSettings
from slipway_process.supervisor import OnFailure, Supervisor
from slipway_process.termination import Parser, last_words
from slipway_process.values import Bytes, Flag, Folder, LogLevel, OptionalFile, Port, Seconds, Variable

from .. import pages
from .engine import EngineApi
from .follow import AdapterLoader, LoaderRules
from .report import page_of

log = logging.getLogger("slipway.adapter_loader")


class AdapterLoaderSettings(ProcessSettings):
    """Brings the adapters of a file to an engine. Credentials are those of slipway-fetcher, one set for all."""

    model_config = SettingsConfigDict(cli_prog_name="slipway-adapter-loader", env_ignore_empty=True)
    parser = Parser

    log_level: Annotated[LogLevel, Flag(""), Variable("SLIPWAY_LOG_LEVEL")] = Field(
        "info", description="lowest level that the log has"
    )
    adapters_config: Annotated[OptionalFile, Variable(), Flag("FILE")] = Field(
        ..., description="file with the adapters, read again each second"
    )
    dest: Annotated[Folder, Variable()] = Field(
        description="folder of all adapters, at the same path for the engine: --lora-root of slipway-server"
    )
    engine_url: Annotated[str, Variable(), Flag("URL")] = Field(
        description="where the engine takes commands: of slipway-server the probe port"
    )
    engine: Annotated[Literal["slipway", "vllm", "sglang"], Variable()] = Field(
        "slipway", description="which API for adapters the engine has"
    )
    host: Annotated[str, Variable(), Flag("ADDRESS")] = Field("", description="address of the port; empty: all")
    port: Annotated[Port, Variable()] = Field(
        ADAPTERS_PORT, description="port of /adapters, /ready, /live and /metrics; 0: any"
    )
    max_bytes: Annotated[Bytes, Variable()] = Field(
        1 << 34, description="largest total size of the files of all adapters"
    )
    max_fetch_s: Annotated[Seconds, Variable()] = Field(
        600.0, gt=0, description="time that the download of one adapter may take; one that takes longer is tried again"
    )


def main() -> None:
    settings = AdapterLoaderSettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    assert settings.adapters_config, "the settings require it"
    rules = LoaderRules(settings.adapters_config, settings.dest, settings.max_bytes, settings.max_fetch_s)
    sys.exit(asyncio.run(run(rules, EngineApi(settings.engine_url, settings.engine), settings.port, settings.host)))


async def run(rules: LoaderRules, engine: EngineApi, port: int, host: str = "") -> int:
    """Follow the file until SIGTERM or SIGINT. Returns 1 where the port is taken, or when its task failed too often."""
    rules.folder.mkdir(parents=True, exist_ok=True)
    loader, stop = AdapterLoader(rules, engine), asyncio.Event()
    restarts = [0]

    def restarted(_: str) -> None:
        restarts[0] += 1

    tasks = Supervisor(restarted, stop.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with pages.served(port, lambda path: page_of(loader, path, restarts[0]), "report", host) as bound:
        if not bound:
            last_words(f"The port {port} of the report cannot be bound.")
            return 1
        log.info("listening", extra={"port": bound})
        tasks.start("adapters", loader.run, OnFailure.EXIT)
        await stop.wait()
        await tasks.close()
    return int(bool(tasks.gave_up))
