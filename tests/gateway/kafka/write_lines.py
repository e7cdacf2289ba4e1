"""Writes lines of JSON to a topic: `write_lines.py LIBRARIES SERVER TOPIC`, with a list of batches in stdin."""

import json
import sys

libraries, server, topic = sys.argv[1:]
sys.path.append(libraries)

from slipway_gateway.experiments.sinks.kafka import KafkaSink  # noqa: E402
from slipway_gateway.telemetry.rotated_file import UnwrittenLines  # noqa: E402

sink = KafkaSink([server], topic)
for batch in json.load(sys.stdin):
    try:
        sink.write([json.dumps(line).encode() + b"\n" for line in batch])
    except UnwrittenLines as error:
        print(error)
sink.close()
