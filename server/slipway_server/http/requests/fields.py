"""Types of the fields of requests: each with its range and its length, from which the OpenAPI document is made too.

Those of sampling parameters are declared with them, in `sampling.py` of the package.
"""

from typing import Annotated, Any

from msgspec import Meta

from ...sampling import TokenId

MAX_STOPS, MAX_STOP_CHARACTERS = 16, 1024
MAX_CHOICES = 64
MAX_BEST_OF = 20  # OpenAI's own limit
MAX_PROMPTS = 2048  # OpenAI's own limit for embeddings
MAX_PROMPT_IDS = 1 << 22
MAX_TIMEOUT_S = 86_400.0
MAX_MESSAGES = 1 << 16

LengthPenalty = Annotated[float, Meta(ge=-10.0, le=10.0)]
Priority = Annotated[int, Meta(ge=-1000, le=1000, description="lower runs earlier")]
Timeout = Annotated[float, Meta(gt=0.0, le=MAX_TIMEOUT_S, description="seconds to the end of the answer")]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
BestOf = Annotated[int, Meta(ge=1, le=MAX_BEST_OF)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None
Tokens = Annotated[list[TokenId], Meta(max_length=MAX_PROMPT_IDS)]
# A text, several, the token ids of one, or of several. msgspec knows one kind of list in a union: see `prompts_of`.
Prompts = str | Annotated[list[str | TokenId | Tokens], Meta(min_length=1, max_length=MAX_PROMPT_IDS)]
Texts = Annotated[list[str], Meta(min_length=1, max_length=MAX_PROMPTS)]
Objects = Annotated[list[dict[str, Any]], Meta(max_length=1024)]
TemplateVariables = Annotated[dict[str, Any], Meta(max_length=64)]
# OpenAI's `metadata`: for logs of the client's.
Short = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], Short], Meta(max_length=16)]
ToolName = Annotated[str, Meta(min_length=1, max_length=256)]
