"""Sends requests to a gateway with an API key, and reads its errors."""

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from slipway_cli.api import Json
from slipway_cli.errors import CommandError, ObjectNotFound, Unreachable

_TIMEOUT_S = 60.0
_CHUNK_BYTES = 256 << 10
_MAX_JSON_BYTES = 16 << 20
_CODES = {404: ObjectNotFound, 502: Unreachable, 503: Unreachable, 504: Unreachable}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the API key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class GatewayClient:
    """A client of one gateway. `url`: as the base URL of OpenAI's clients, with or without `/v1`."""

    def __init__(self, url: str, key: str) -> None:
        """
        Raises:
            CommandError: `url` is no http or https URL.
        """
        self._url = base_url(url)
        self._headers = {"User-Agent": "slipway"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._opener = urllib.request.build_opener(_NoRedirects)

    def get(self, path: str, **query: str) -> Json:
        """The JSON object that the gateway answers with.

        Raises:
            CommandError: the gateway refuses the request, or there is no response (`Unreachable`).
        """
        return self._json("GET", path + (f"?{urllib.parse.urlencode(query)}" if query else ""))

    def delete(self, path: str) -> Json:
        """Raises what `get` raises."""
        return self._json("DELETE", path)

    def post(self, path: str, body: Any = None) -> Json:
        """Raises what `get` raises."""
        data = b"" if body is None else json.dumps(body).encode()
        return self._json("POST", path, data, {"Content-Type": "application/json"})

    def upload(self, file: Path, progress: Callable[[int], None]) -> Json:
        """Sends a file of requests; `progress` gets the number of bytes of each part. Raises what `get` raises."""
        mark = f"slipway-{os.urandom(12).hex()}"
        name = urllib.parse.quote(file.name)
        head = (
            f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        ).encode()
        end, size = f"\r\n--{mark}--\r\n".encode(), file.stat().st_size

        def parts() -> Iterator[bytes]:
            yield head
            with file.open("rb") as opened:
                while chunk := opened.read(_CHUNK_BYTES):
                    progress(len(chunk))
                    yield chunk
            yield end

        headers = {"Content-Type": f"multipart/form-data; boundary={mark}"}
        headers["Content-Length"] = str(len(head) + size + len(end))
        return self._json("POST", "/v1/files", parts(), headers)

    def download(self, file_id: str, into: BinaryIO, progress: Callable[[int], None]) -> None:
        """Writes the content of a file into `into`. Raises what `get` raises, also when the content ends too early."""
        with self._open("GET", f"/v1/files/{_quoted(file_id)}/content") as response:
            try:
                left = int(response.headers["Content-Length"])
                while chunk := response.read(_CHUNK_BYTES):
                    left -= len(chunk)
                    into.write(chunk)
                    progress(len(chunk))
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"the download of {file_id} ended early: {type(error).__name__}") from error
        if left:
            raise Unreachable(f"the download of {file_id} ended early: {left} bytes are missing")

    def _json(self, method: str, path: str, data: Any = None, headers: Mapping[str, str] | None = None) -> Json:
        with self._open(method, path, data, headers) as response:
            try:
                found = json.loads(response.read(_MAX_JSON_BYTES))
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise Unreachable(f"the gateway {self._url} gave no JSON: is it the right --url?") from error
        if not isinstance(found, dict):
            raise CommandError(
                f"the gateway {self._url} gave another response than its API has: is it the right --url?"
            )
        return found

    def _open(self, method: str, path: str, data: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        all_headers = self._headers | dict(headers or {})
        request = urllib.request.Request(self._url + path, data, all_headers, method=method)
        try:
            return self._opener.open(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise _CODES.get(error.code, CommandError)(_message(error)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise Unreachable(f"the gateway {self._url} cannot be reached: {reason}; is --url right?") from error


def base_url(url: str) -> str:
    """The URL of a gateway without a path.

    Raises:
        CommandError: `url` is no http or https URL.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # brackets that hold no address
        is_url = False
    if not is_url:
        raise CommandError(
            f"{url!r} is no URL of a gateway: write for example http://slipway-gateway.slipway-system.svc"
        )
    return url.rstrip("/").removesuffix("/v1")


def batch_path(batch_id: str, action: str = "") -> str:
    return f"/v1/batches/{_quoted(batch_id)}{action}"


def job_path(job_id: str) -> str:
    return f"/v1/jobs/{_quoted(job_id)}"


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _message(error: urllib.error.HTTPError) -> str:
    """The message of an error in OpenAI's shape, with its code; else a sentence with the status."""
    try:
        found = json.loads(error.read(_MAX_JSON_BYTES))["error"]
        code = f" ({found['code']})" if found.get("code") else ""
        hint = ": set SLIPWAY_API_KEY" if error.code == 401 else ""
        return f"{str(found['message'])[:500]}{code}{hint}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, http.client.HTTPException):
        return f"the gateway answered with status {error.code}"
