"""Where the API server finds the conversion webhook."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WebhookHost:
    """The Service through which the API server calls us, and the Secret with what signs its certificate."""

    namespace: str
    service: str
    secret: str

    @property
    def dns_name(self) -> str:
        """The name that the API server expects in the certificate."""
        return f"{self.service}.{self.namespace}.svc"
