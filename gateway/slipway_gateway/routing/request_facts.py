"""What rules of ModelRoutes look at in a request (pure)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property

from ..wire import prompts
from ..wire.request_fields import RequestFields


class RequestFacts:
    """It is read from the body when a rule needs it, and once. `headers`: case-insensitive. `tenant`: empty without."""

    def __init__(self, headers: Mapping[str, str], fields: RequestFields, body_bytes: int, tenant: str) -> None:
        self.headers, self.fields, self.tenant = headers, fields, tenant
        self._body_bytes = body_bytes

    @cached_property
    def prompt_bytes(self) -> int:
        return prompts.prompt_bytes(self.fields, self._body_bytes)

    @cached_property
    def has_tools(self) -> bool:
        return prompts.has_tools(self.fields)

    @cached_property
    def has_images(self) -> bool:
        return prompts.has_images(self.fields)

    @cached_property
    def has_code(self) -> bool:
        return prompts.has_code(self.fields)

    @cached_property
    def arrived(self) -> datetime:
        return datetime.now(UTC)
