"""What ends a command early: one sentence for the user and an exit code, which docs/cli.md lists."""

FAILED, TIMED_OUT, REJECTED, INTERRUPTED = 1, 3, 4, 130


class Trouble(Exception):
    """A sentence that says what is wrong and what to do."""

    code = FAILED


class Missing(Trouble):
    """The object does not exist."""


class Forbidden(Trouble):
    """The user may not do this."""


class Unreachable(Trouble):
    """The API server does not answer now; later it may."""


class TimedOut(Trouble):
    """What was waited for did not come in time."""

    code = TIMED_OUT


class Rejected(Trouble):
    """What was waited for will not come: the revision was rejected."""

    code = REJECTED
