"""Decisions: what should be, from what is. No I/O, no clock, no environment, no logging."""
