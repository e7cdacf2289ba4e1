"""POST /tokenize and /detokenize, as in vLLM: texts and chats to token ids, and back."""

from aiohttp import web

from .openai import check_model
from .requests.bodies import body_of, checked, decoded, parse
from .requests.prompts import check_tokens
from .requests.schemas import DetokenizeRequest, TokenizeRequest
from .responses.sse import json_response
from .service import ModelService


class Tokenization:
    def __init__(self, service: ModelService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/tokenize", self.tokenize), web.post("/detokenize", self.detokenize)]

    async def tokenize(self, http: web.Request) -> web.Response:
        fields = decoded(await body_of(http))
        body = checked(fields, TokenizeRequest)
        body.check()
        model, texts = self._service.model, self._service.texts
        check_model(self._service, model.name if body.model is None else body.model)
        if body.prompt is None:
            tokens = (await texts.chat(body.chat(model.name), fields["messages"], None)).tokens
        else:
            tokens = await texts.encode(body.prompt, special_tokens=body.add_special_tokens is not False)
        names = await texts.names(tokens) if body.return_token_strs else None
        answer = {"count": len(tokens), "max_model_len": model.context_tokens, "tokens": tokens, "token_strs": names}
        return json_response(answer)

    async def detokenize(self, http: web.Request) -> web.Response:
        body = parse(await body_of(http), DetokenizeRequest)
        check_model(self._service, self._service.model.name if body.model is None else body.model)
        check_tokens(body.tokens, "tokens", self._service.model.tokenizer.vocabulary_size)
        return json_response({"prompt": await self._service.texts.decode(body.tokens)})
