"""Errors of calls to the API server; no exception of the client library leaves this package."""

from slipway_process.pages import PageTooLarge


class ApiError(Exception):
    """A call to the API server failed; the subclass gives the kind of failure."""


class NotFound(ApiError):
    """The object, or the kind, does not exist."""


class Stale(ApiError):
    """Another writer was faster: read again and decide again."""


class Exists(ApiError):
    """An object of this name exists already."""


class Refused(ApiError):
    """The API server rejected the call: quota, admission, schema or permission."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Leaving(Refused):
    """The namespace is being deleted: nothing can be created in it any more."""


class ListTooLarge(ApiError, PageTooLarge):
    """The response has more bytes than any object: a list that has to be read in smaller pages."""


class Fenced(ApiError):
    """This process does not hold the lease: another operator may be writing."""


class Unavailable(ApiError):
    """The API server did not respond, or with status 429 or 5xx; a later call may succeed."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        """`retry_after_s`: the response's Retry-After; 0 without one."""
        super().__init__(message)
        self.retry_after_s = retry_after_s
