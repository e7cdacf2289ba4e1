"""What a model's folder has of its chat template, read and not compiled: a template is a stranger's program."""

from pathlib import Path

import msgspec

from slipway_process.model_folder.tokenizer_files import DEFAULT, FOR_TOOLS, TokenizerFiles

NO_TEMPLATE = "This model has no chat template: use /v1/completions."
ONLY_FOR_TOOLS = "This model has a chat template for conversations with tools alone: send tools."
MAX_REASON_CHARACTERS = 300  # of an error's message in a response


class TemplateSource(msgspec.Struct, frozen=True):
    """The texts of a model's templates.

    `plain` is None without a template; `for_tools` is another one, for conversations with tools.
    """

    plain: str | None = None
    special_tokens: dict[str, str] = {}
    for_tools: str | None = None

    @classmethod
    def of(cls, files: TokenizerFiles) -> "TemplateSource":
        return cls(files.templates.get(DEFAULT), files.texts, files.templates.get(FOR_TOOLS))

    @classmethod
    def read(cls, folder: Path) -> "TemplateSource":
        """Raises BadFile for files that cannot be read."""
        return cls.of(TokenizerFiles.read(folder))

    @property
    def missing(self) -> str:
        """Why there is no template; "" where there is one, which may still not be valid."""
        return "" if self.text else NO_TEMPLATE

    @property
    def text(self) -> str:
        """The source of the template for conversations with tools; "" without a template."""
        return self.for_tools or self.plain or ""


def shortened(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_REASON_CHARACTERS else text[:MAX_REASON_CHARACTERS] + "…"
