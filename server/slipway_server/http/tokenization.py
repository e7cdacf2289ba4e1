"""POST /tokenize and /detokenize, as in vLLM: texts and chats to token ids, and back."""

from aiohttp import web

from slipway_process.serving.bodies import body_of, json_response

from .requests.schemas import DetokenizeRequest, TokenizeRequest
from .service import ModelService


class Tokenization:
    def __init__(self, service: ModelService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/tokenize", self.tokenize), web.post("/detokenize", self.detokenize)]

    async def tokenize(self, http: web.Request) -> web.Response:
        service = self._service
        tenant = service.tenants.of(http.headers)
        body, prompt = await service.read_texts(await body_of(http), TokenizeRequest, tenant)
        names = await service.reader.names(prompt.tokens, tenant) if body.return_token_strs else None
        counted = {"count": len(prompt.tokens), "max_model_len": service.model.context_tokens}
        return json_response(counted | {"tokens": prompt.tokens, "token_strs": names})

    async def detokenize(self, http: web.Request) -> web.Response:
        tenant = self._service.tenants.of(http.headers)
        _, prompt = await self._service.read_texts(await body_of(http), DetokenizeRequest, tenant)
        return json_response({"prompt": prompt.text})
