"""Crash injection: a proxy between a real operator and a real API server interferes with each call in turn."""
