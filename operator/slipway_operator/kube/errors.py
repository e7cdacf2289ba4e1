"""What can go wrong at the API server, in our own words; no exception of the client library leaves the room."""


class ApiError(Exception):
    """A call failed."""


class NotFound(ApiError):
    """The object, or the kind, does not exist."""


class Stale(ApiError):
    """Somebody else was faster: read again and decide again."""


class Exists(ApiError):
    """An object of this name is there already."""


class Refused(ApiError):
    """The API server understood the call and said no: quota, admission, schema or permission."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Leaving(Refused):
    """The namespace is being deleted: nothing can be created in it ever again."""


class Fenced(ApiError):
    """We do not hold the lease now: another operator may be writing."""


class Unavailable(ApiError):
    """The API server did not answer, or not with an answer; later it may."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        """`retry_after_s`: before that the API server does not want to see the call again."""
        super().__init__(message)
        self.retry_after_s = retry_after_s
