"""The container beside a pool: downloads the files of the entries in the pool's file, and deletes those of former ones.

`follow` is the loop; it runs slipway-fetcher for each entry, so that a download has a process of its own.
"""

import asyncio
import signal
import sys
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from slipway_process import logs
from slipway_process.settings import ProcessSettings
from slipway_process.supervisor import OnFailure, Supervisor
from slipway_process.termination import Parser
from slipway_process.values import Bytes, Flag, Folder, LogLevel, OptionalFile, Seconds, Variable

from .follow import FetchRules, PoolFolder


class PoolFetcherSettings(ProcessSettings):
    """Brings the models of a pool's file into its folder. Credentials are those of slipway-fetcher, one set for all."""

    model_config = SettingsConfigDict(cli_prog_name="slipway-pool-fetcher", env_ignore_empty=True)
    parser = Parser

    log_level: Annotated[LogLevel, Flag(""), Variable("SLIPWAY_LOG_LEVEL")] = Field(
        "info", description="lowest level that the log has"
    )
    pool_config: Annotated[OptionalFile, Variable(), Flag("FILE")] = Field(
        ..., description="file with the models of the pool, read again each second"
    )
    dest: Annotated[Folder, Variable()] = Field(description="folder of all models, as --model of slipway-server")
    max_bytes: Annotated[Bytes, Variable()] = Field(
        1 << 36, description="largest total size of the files of all models"
    )
    max_fetch_s: Annotated[Seconds, Variable()] = Field(
        3600.0, gt=0, description="time that the download of one model may take; one that takes longer is tried again"
    )


def main() -> None:
    settings = PoolFetcherSettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    assert settings.pool_config, "the settings require it"
    rules = FetchRules(settings.pool_config, settings.dest, settings.max_bytes, settings.max_fetch_s)
    sys.exit(asyncio.run(run(PoolFolder(rules))))


async def run(folder: PoolFolder) -> int:
    """Follow the pool's file until SIGTERM or SIGINT. Returns 1 when its task failed too often.

    No page of metrics counts restarts here: the log has them, and the container's restarts what follows.
    """
    stop = asyncio.Event()
    tasks = Supervisor(lambda task: None, stop.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks.start("pool-folder", folder.run, OnFailure.EXIT)
    await stop.wait()
    await tasks.close()
    return int(bool(tasks.gave_up))
