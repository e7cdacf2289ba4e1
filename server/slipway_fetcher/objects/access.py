"""Where an object store is and with which credentials it is read; pure.

Flags give the location. Variables hold the keys of the Secret in spec.model.secretRef, and what a platform injects for
a web identity. The identity of a node, which metadata services give out, is never used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

SECRETS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
}
# What an error message advises when access without credentials is denied.
NEEDED = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}
IDENTITY = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME"),
    *("AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_AUTHORITY_HOST"),
)


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """What flags and variables say about a store."""

    endpoint: str = ""
    region: str = ""
    account: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def secret(self, name: str) -> str:
        return self.variables.get(name, "").strip()
