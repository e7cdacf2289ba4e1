"""Where exposures are logged: an HTTP server, a database, Kafka, and by `telemetry/rotated_file.py` stdout and files.

Each has a queue and a thread of its own (`telemetry/line_writer.py`), so that one that fails delays no other. What it
does not take is dropped and counted, by sink and reason.
"""
