"""Opens an object store for reading, with the guarded proxy as its only way out."""

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from slipway_process import environment

from ..folder import FetchError
from . import location as locations
from .access import StoreAccess
from .location import Location

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, ObjectStore, RetryConfig, S3Config

AUTHORITIES = (
    "https://login.microsoftonline.com",
    "https://login.microsoftonline.us",
    "https://login.chinacloudapi.cn",
)
CONNECT_S, STALLED_S = 20, 60
_TIMES: "ClientConfig" = {
    "connect_timeout": timedelta(seconds=CONNECT_S),
    "read_timeout": timedelta(seconds=STALLED_S),
    "timeout": timedelta(minutes=30),  # of one range: a slow line is no error, a silent one is
}
_RETRY: "RetryConfig" = {"max_retries": 4, "retry_timeout": timedelta(minutes=2)}
_KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # which authorities are trusted, as for Python


def hosts(location: Location, access: StoreAccess) -> tuple[str, ...]:
    """URLs of the hosts that the store's client calls. They may have private addresses: a cloud's private endpoints."""
    urls = [locations.endpoint(location, access)]
    if location.scheme == "s3" and web_identity(location, access):
        urls.append(_sts(access))
    if location.scheme == "az" and web_identity(location, access):
        urls.append(_authority(access))
    return tuple(urls)


def has_credentials(location: Location, access: StoreAccess) -> bool:
    given = {
        "s3": access.secret("AWS_ACCESS_KEY_ID"),
        "gs": access.secret("GOOGLE_SERVICE_ACCOUNT_KEY"),
        "az": access.secret("AZURE_STORAGE_ACCOUNT_KEY") or access.secret("AZURE_STORAGE_SAS_TOKEN"),
    }
    return bool(given[location.scheme]) or web_identity(location, access)


def web_identity(location: Location, access: StoreAccess) -> bool:
    """Whether the platform injected a token of its own for the pod."""
    needed = {
        "s3": ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
        "az": ("AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_ID", "AZURE_TENANT_ID"),
    }.get(location.scheme, ())
    return bool(needed) and all(access.secret(name) for name in needed)


def opened(location: Location, access: StoreAccess, proxy_url: str) -> "ObjectStore":
    """The store's client.

    Raises:
        FetchError: for credentials that cannot be used.
    """
    endpoint = locations.endpoint(location, access)
    client: ClientConfig = {**_TIMES, "proxy_url": proxy_url, "allow_http": endpoint.startswith("http://")}
    # The library reads dozens of variables, endpoints and metadata services among them; users control them.
    with environment.hidden(_KEPT):
        try:
            match location.scheme:
                case "s3":
                    return S3Store(
                        location.bucket, config=_s3(location, access, endpoint), client_options=client,
                        retry_config=_RETRY,
                    )  # fmt: skip
                case "gs":
                    return GCSStore(
                        location.bucket, config=_gs(access, endpoint), client_options=client, retry_config=_RETRY
                    )
                case _:
                    return AzureStore(
                        location.bucket, config=_az(location, access, endpoint), client_options=client,
                        retry_config=_RETRY,
                    )  # fmt: skip
        except FetchError:
            raise
        except Exception:
            # The text of the error may hold the credentials.
            raise FetchError(
                f"{location.shown} cannot be read with the credentials that were given: correct the Secret of "
                "spec.model.secretRef."
            ) from None


def _s3(location: Location, access: StoreAccess, endpoint: str) -> "S3Config":
    config: S3Config = {"endpoint": endpoint, "region": locations.region(access)}
    key, secret = access.secret("AWS_ACCESS_KEY_ID"), access.secret("AWS_SECRET_ACCESS_KEY")
    if bool(key) != bool(secret):
        raise FetchError(
            "Of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing: write both into the Secret of "
            "spec.model.secretRef, or neither."
        )
    if key:
        config |= {"access_key_id": key, "secret_access_key": secret}
        if token := access.secret("AWS_SESSION_TOKEN"):
            config["session_token"] = token
    elif web_identity(location, access):
        config["role_arn"] = access.secret("AWS_ROLE_ARN")
        config["web_identity_token_file"] = _token_file(access.secret("AWS_WEB_IDENTITY_TOKEN_FILE"))
        if name := access.secret("AWS_ROLE_SESSION_NAME"):
            config["role_session_name"] = name
    else:
        config["skip_signature"] = True
    return config


def _sts(access: StoreAccess) -> str:
    """The region's STS URL, where the library exchanges the pod's token: the library builds the same URL."""
    zone = locations.region(access)
    return f"https://sts.{zone}.amazonaws.com"


def _gs(access: StoreAccess, endpoint: str) -> "GCSConfig":
    config: GCSConfig = {"base_url": endpoint}
    if key := access.secret("GOOGLE_SERVICE_ACCOUNT_KEY"):
        return {**config, "service_account_key": _service_account(key, endpoint)}
    return {**config, "skip_signature": True}


def _service_account(text: str, endpoint: str) -> str:
    """The JSON key with its own fields alone: other fields of the file could lead the client to another server."""
    try:
        key = json.loads(text)
        fields = {name: str(key[name]) for name in ("client_email", "private_key", "private_key_id")}
        known = key.get("type") == "service_account"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known = False
    if not known:
        raise FetchError(
            "GOOGLE_SERVICE_ACCOUNT_KEY of the Secret is not the JSON key of a service account: create one with "
            "`gcloud iam service-accounts keys create`."
        )
    return json.dumps({"type": "service_account", **fields, "gcs_base_url": endpoint, "disable_oauth": False})


def _az(location: Location, access: StoreAccess, endpoint: str) -> "AzureConfig":
    config: AzureConfig = {"endpoint": endpoint, "account_name": locations.account(access)}
    if key := access.secret("AZURE_STORAGE_ACCOUNT_KEY"):
        return {**config, "account_key": key, "credential_type": "access_key"}
    if token := access.secret("AZURE_STORAGE_SAS_TOKEN"):
        return {**config, "sas_key": token.removeprefix("?"), "credential_type": "sas_token"}
    if web_identity(location, access):
        return {
            **config,
            "credential_type": "workload_identity",
            "federated_token_file": _token_file(access.secret("AZURE_FEDERATED_TOKEN_FILE")),
            "client_id": access.secret("AZURE_CLIENT_ID"),
            "tenant_id": access.secret("AZURE_TENANT_ID"),
            "authority_host": _authority(access),
        }
    return {**config, "skip_signature": True}


def _authority(access: StoreAccess) -> str:
    """The URL that exchanges the pod's token; FetchError unless it is one of Microsoft's own."""
    written = access.secret("AZURE_AUTHORITY_HOST").rstrip("/") or AUTHORITIES[0]
    if written not in AUTHORITIES:
        raise FetchError(
            f"AZURE_AUTHORITY_HOST is {urlsplit(written).hostname}: it is one of {', '.join(AUTHORITIES)}."
        )
    return written


def _token_file(path: str) -> str:
    if not Path(path).is_file():
        raise FetchError(
            f"There is no file {path[:256]} with the pod's token: check the identity of its service account."
        )
    return path
