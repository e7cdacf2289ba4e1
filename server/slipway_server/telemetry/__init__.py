"""Logs, metrics, traces, the engine's heartbeat, and the termination message."""
