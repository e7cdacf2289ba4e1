"""Bodies of the endpoints of rerankers and classifiers of texts. Fields that they do not have are 400."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from slipway_process.serving.bodies import CallerName, ModelName

MAX_TEXTS = 1000  # of a request

TopN = Annotated[int, Meta(ge=0, le=2**31 - 1, description="best documents to return; 0: all")]


class RerankDocument(Struct, forbid_unknown_fields=True):
    text: str


Documents = Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MAX_TEXTS)]
OneOrMore = str | Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]


class TextRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of every endpoint. Those that a client may only leave empty would change the response."""

    model: ModelName
    user: CallerName | None = None
    use_activation: bool | None = None  # probabilities, unless false: the model's own numbers
    truncate_prompt_tokens: Literal[-1] | None = None  # the limit of the model, at which rows are always cut
    priority: Literal[0] | None = None

    @property
    def activates(self) -> bool:
        return self.use_activation is not False


class RerankRequest(TextRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/rerank."""

    query: str
    documents: Documents
    top_n: TopN | None = None
    return_documents: bool | None = None
    max_chunks_per_doc: None = None
    max_tokens_per_doc: None = None
    rank_fields: None = None


class ScoreRequest(TextRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/score: one text with each of several ones, or the first with the first one, and so on."""

    text_1: OneOrMore
    text_2: OneOrMore


class ClassifyRequest(TextRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /classify."""

    input: OneOrMore
