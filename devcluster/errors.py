"""The one exception that devcluster raises on purpose: a sentence for the person at the terminal."""

from __future__ import annotations


class DevclusterError(Exception):
    """What went wrong and what to do; the command line prints it without a traceback."""
