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
    """The API server or a gateway does not answer now; later it may."""


class TimedOut(CommandError):
    """The state that a command waits for was not reached in time."""

    code = TIMED_OUT


class Rejected(CommandError):
    """The state that a command waits for will not be reached: a revision was rejected, or a batch or job failed."""

    code = REJECTED
