"""Logs, metrics, traces, the engine's heartbeat, and the termination message.

`metrics` uses vLLM's names, `tracing` OpenTelemetry's; `termination` writes the sentence that the operator shows when
a container ends.
"""
