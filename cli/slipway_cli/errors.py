"""What ends a command early: one sentence for the user and an exit code, which docs/cli.md lists."""

FAILED, TIMED_OUT, REJECTED, INTERRUPTED = 1, 3, 4, 130


class CommandError(Exception):
    """A sentence with the cause and what to do."""

    code = FAILED


class ObjectNotFound(CommandError):
    """The object does not exist."""


class Conflict(CommandError):
    """Another client changed the object meanwhile."""


class Forbidden(CommandError):
    """The user may not do this."""


class Unreachable(CommandError):
    """The API server does not answer now; later it may."""


class TimedOut(CommandError):
    """What was waited for did not come in time."""

    code = TIMED_OUT


class Rejected(CommandError):
    """What was waited for will not come: the revision was rejected."""

    code = REJECTED
