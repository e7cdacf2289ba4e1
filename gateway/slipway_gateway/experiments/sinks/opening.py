"""Opens the sinks of exposures that the settings name."""

import sys
from collections.abc import Iterator
from functools import partial

from slipway_process.network.listed_hosts import ListedHosts

from ...settings import GatewaySettings
from ...telemetry.access_log import OFF, STDOUT
from ...telemetry.line_writer import LineWriter
from ...telemetry.metrics import GatewayMetrics
from ...telemetry.rotated_file import OpenStream, RotatedFile, Sink
from .database import ExposureTable
from .http import HttpSink
from .kafka import KafkaSink


def open_sinks(settings: GatewaySettings, metrics: GatewayMetrics) -> list[LineWriter]:
    """
    Raises:
        OSError: a file cannot be written.
        ValueError: an address or a library cannot be used; the message names the flag.
    """
    return [
        LineWriter(
            sink,
            partial(metrics.exposures_lost, name),
            name=f"exposures for {name}",
            on_restart=metrics.task_restarted,
        )
        for name, sink in list(_sinks(settings))
    ]


def _sinks(settings: GatewaySettings) -> Iterator[tuple[str, Sink]]:
    if settings.exposure_log == STDOUT:
        yield "stdout", OpenStream(sys.stdout.fileno())
    elif settings.exposure_log != OFF:
        bounds = (settings.access_log_max_bytes, settings.access_log_max_files)
        yield "file", RotatedFile(settings.exposure_log, *bounds)
    if settings.exposure_url:
        hosts = ListedHosts(settings.exposure_hosts)
        yield "http", HttpSink(settings.exposure_url, hosts, settings.exposure_token_file)
    if url := settings.exposure_database_url.get_secret_value():
        try:
            yield "database", ExposureTable(url, settings.exposure_retention_s)
        except ValueError as error:
            raise ValueError(f"--exposure-database-url: {error}") from None
    if settings.exposure_kafka_servers:
        yield "kafka", KafkaSink(settings.exposure_kafka_servers, settings.exposure_kafka_topic)
