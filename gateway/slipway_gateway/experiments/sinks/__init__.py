"""Where exposures are logged: here an HTTP server, a database and Kafka; stdout and files by `telemetry/rotated_file.py`.

Each has a queue and a thread of its own (`telemetry/line_writer.py`), so that one that fails delays no other. What it
does not take is dropped and counted, by sink and reason.
"""
