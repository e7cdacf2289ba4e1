"""Signs a request to S3: AWS Signature Version 4, of a GET without a body (pure).

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import quote

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY = hashlib.sha256(b"").hexdigest()  # of a body


class Credentials(NamedTuple):
    region: str
    access_key_id: str
    secret_access_key: str
    session_token: str = ""


def path_of(bucket: str, key: str) -> str:
    """The path of an object, encoded as the signature has it."""
    return f"/{bucket}/{quote(key, safe='/-_.~')}"


def signed_headers(
    host: str, path: str, headers: Mapping[str, str], credentials: Credentials, now: datetime
) -> dict[str, str]:
    """All headers of a GET without a query. `headers`: others than the signature's, which it covers. `now`: in UTC."""
    at = now.strftime("%Y%m%dT%H%M%SZ")
    sent = {name.lower(): value for name, value in headers.items()}
    sent |= {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": at}
    if credentials.session_token:
        sent["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name].strip()}\n" for name in sorted(sent))
    canonical = "\n".join(("GET", path, "", lines, names, _EMPTY))
    scope = f"{at[:8]}/{credentials.region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    signature = hmac.digest(_key(credentials, at[:8]), f"{_ALGORITHM}\n{at}\n{scope}\n{digest}".encode(), "sha256")
    credential = f"Credential={credentials.access_key_id}/{scope}"
    return sent | {"authorization": f"{_ALGORITHM} {credential},SignedHeaders={names},Signature={signature.hex()}"}


def _key(credentials: Credentials, day: str) -> bytes:
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in (day, credentials.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
