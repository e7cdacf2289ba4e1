"""Authenticates the operator by a secret that both read from a file."""

import hmac
import logging
from pathlib import Path

_SCHEME = "Bearer "
_LEAST = 16  # characters

log = logging.getLogger(__name__)


class OperatorToken:
    """`path` "": no token is required. The file is read for each request, so a rotated secret counts at once.

    It may have several lines, each a token: the next one, and the previous one until all operators use the next.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._trouble = ""
        self._was_there = False

    def proves(self, authorization: str) -> bool:
        """Whether a header `Authorization: Bearer TOKEN` has one of the tokens. A file that cannot be read has none."""
        if not self._path:
            return True
        given = authorization.removeprefix(_SCHEME).encode("utf-8", "surrogateescape")
        return authorization.startswith(_SCHEME) and any(hmac.compare_digest(given, one) for one in self._tokens())

    def _tokens(self) -> list[bytes]:
        try:
            lines = Path(self._path).read_bytes().split()
        except OSError as error:
            if str(error) != self._trouble:  # logged once, not for each request
                self._report(error)
            self._trouble = str(error)
            return []
        self._trouble, self._was_there = "", True
        return [line for line in lines if len(line) >= _LEAST]

    def _report(self, error: OSError) -> None:
        if isinstance(error, FileNotFoundError) and not self._was_there:  # a new release: the operator makes its Secret
            log.info("the operator's token is not there yet: %s", self._path)
            return
        log.error("the operator's token cannot be read, so the operator cannot renew the failsafe: %s", error)
