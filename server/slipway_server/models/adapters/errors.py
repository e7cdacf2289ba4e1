"""Why an adapter cannot be loaded."""


class AdapterError(Exception):
    """One sentence for a person. `field`: of adapter_config.json or of the request, or the name of a tensor."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field
