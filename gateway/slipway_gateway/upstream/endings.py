"""How connections to endpoints end."""

import errno

import aiohttp

# Errors of a connection to a process that died.
_DIED = (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError)
_DIED_ERRNOS = frozenset({errno.ECONNRESET, errno.EPIPE})


def is_death(error: BaseException) -> bool:
    """Whether the process at the other end may have died: it closed or reset the connection before its response ended.

    A failed write of the body has the reset as its cause. A response that breaks off has another error of the operating
    system as its cause where the network is gone.
    """
    cause = error.__cause__
    if isinstance(error, aiohttp.ClientPayloadError):
        return not isinstance(cause, OSError) or _is_reset(cause)
    return _is_reset(error) or _is_reset(cause)


def _is_reset(error: BaseException | None) -> bool:
    return isinstance(error, _DIED) or (isinstance(error, OSError) and error.errno in _DIED_ERRNOS)
