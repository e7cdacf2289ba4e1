"""Types of objects as the API server returns them, and of their keys."""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]  # an object that is only read
Object = dict[str, Any]
ObjectKey = tuple[str, str]  # namespace and name
