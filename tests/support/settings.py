"""Settings as a process with these arguments and variables has them, whatever the machine's own environment is."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from unittest import mock

T = TypeVar("T")

POD = {"POD_ID": "slipway-operator-0"}  # the name of an operator's pod, from the downward API


def parsed(
    parse: Callable[[Sequence[str]], T], arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> T:
    """What `parse` makes of the arguments and of nothing but these variables."""
    with mock.patch.dict(os.environ, environment or {}, clear=True):
        return parse(arguments)
