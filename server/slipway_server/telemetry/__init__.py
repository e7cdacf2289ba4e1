"""Logs, metrics, traces, the engine's heartbeat, and the termination message.

`metrics` has vLLM's names, `tracing` OpenTelemetry's, and `termination` the sentence that the operator shows when a
process ends.
"""
