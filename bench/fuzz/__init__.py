"""Fuzzing of the model server and the gateway: hostile requests against live processes."""
