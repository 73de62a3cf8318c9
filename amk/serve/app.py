"""The server's routes: OpenAI's models, chats and completions; health and metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from amk.engine.backends.room import check_room
from amk.engine.generation.completion import Completion, Options, Piece, Usage
from amk.engine.generation.language_model import LanguageModel
from amk.engine.tokenizers.token_bytes import bytes_of_tokens
from amk.report.diagnostic import AmkError
from amk.serve.answers import Frame, added, body_of, error_body, event, status_of
from amk.serve.decoding import Busy, Decoding, Request
from amk.serve.event_stream import EventStream, client_gone
from amk.serve.metrics import Metrics
from amk.serve.prompts import Prompts
from amk.serve.requests import ChatRequest, CompletionRequest, fault, sampling_defaults
from amk.serve.settings import Keys, Limits

_LOG = logging.getLogger("amk.serve")
CLOSED_REQUEST = 499
"""Nobody sees it but the metrics: the client had gone."""
RETRY_SECONDS = "1"

Body = TypeVar("Body", ChatRequest, CompletionRequest)
Handler = Callable[[HttpRequest], Awaitable[Response]]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.body = status, error_body(message, code, param, status)


class Server:
    """One model behind HTTP. `app` is an ASGI application.

    defaults: temperature, top_k, top_p and seed for requests that leave them out, before what the checkpoint suggests.
    """

    def __init__(
        self, model: LanguageModel, name: str, limits: Limits, keys: Keys, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.model, self.name, self.limits, self.keys = model, name, limits, keys
        self._defaults = sampling_defaults(model.suggested, defaults or {})
        self.metrics = Metrics()
        self.decoding = Decoding(model, limits, self.metrics)
        self._prompts, self._token_bytes = Prompts(model.tokenizer), bytes_of_tokens(model.tokenizer.backend)
        routes = [
            Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
            Route("/v1/completions", self._guarded(self._complete), methods=["POST"]),
            Route("/v1/models", self._guarded(self._models)),
            Route("/v1/models/{name:path}", self._guarded(self._model)),
            Route("/health", self._health),
            Route("/health/ready", self._ready),
            Route("/metrics", self._metrics_text),
        ]
        self.app: ASGIApp = Counted(Starlette(routes=routes, exception_handlers={HTTPException: _http_error}), self)

    def _guarded(self, handler: Handler) -> Handler:
        """Whoever asks has a key; what goes wrong is told in OpenAI's words."""

        async def guarded(http: HttpRequest) -> Response:
            address = http.client.host if http.client else ""
            http.state.client = self.keys.client(http.headers.get("authorization", ""), address)
            try:
                if http.state.client is None:
                    raise Refused(401, "the API key is missing or wrong", "invalid_api_key")
                return await handler(http)
            except Refused as refused:
                return JSONResponse(refused.body, refused.status)
            except Busy as busy:
                status = 503 if busy.stopping else 429
                body = error_body(str(busy), "busy", status=status)
                return JSONResponse(body, status, {"retry-after": RETRY_SECONDS})
            except ClientDisconnect:
                return Response(status_code=CLOSED_REQUEST)
            except AmkError as error:
                if status_of(error) == 500:
                    _LOG.error("%s", error)
                return JSONResponse(body_of(error), status_of(error))
            except Exception:  # noqa: BLE001  the boundary: one request's fault is answered, not fatal
                _LOG.exception("%s %s", http.method, http.url.path)
                return JSONResponse(error_body("the server failed", "AMK901", status=500), 500)

        return guarded

    async def _chat(self, http: HttpRequest) -> Response:
        asked = await self._body(http, ChatRequest)
        messages = [message.for_template() for message in asked.messages]
        tools = asked.tools if asked.tool_choice != "none" else None
        if (key := self._prompts.unread(messages, tools, asked.chat_template_kwargs)) is not None:
            raise Refused(400, f"{key}: the chat template of this model does not read it", "invalid_value", key)
        tokens = await asyncio.to_thread(self._prompts.chat, messages, tools, asked.chat_template_kwargs)
        return await self._answered(http, asked, [tokens])

    async def _complete(self, http: HttpRequest) -> Response:
        asked = await self._body(http, CompletionRequest)
        prompts = [
            await asyncio.to_thread(self._prompts.text, each) if isinstance(each, str) else each
            for each in asked.prompts
        ]
        return await self._answered(http, asked, prompts)

    async def _body(self, http: HttpRequest, kind: type[Body]) -> Body:
        if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "the body's content type must be application/json")
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                content = await self._read(http)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.limits.body_seconds:g} s") from None
        try:
            asked = kind.model_validate_json(content)
        except ValidationError as error:
            param, message = fault(error)
            raise Refused(400, f"{param or 'body'}: {message}", "invalid_value", param) from None
        if asked.model != self.name:
            raise Refused(404, f"there is no model {asked.model[:100]!r}, this is {self.name!r}", "model_not_found")
        for name in ("max_tokens", "max_completion_tokens"):
            if (getattr(asked, name, None) or 0) > self.limits.tokens:
                message = f"{name}: this server gives at most {self.limits.tokens:,} tokens"
                raise Refused(400, message, "invalid_value", name)
        return asked

    async def _read(self, http: HttpRequest) -> bytes:
        most, content = self.limits.body_bytes, bytearray()
        too_large = Refused(413, f"the body is larger than {most:,} bytes")
        length = http.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most:
            raise too_large
        async for part in http.stream():
            content += part
            if len(content) > most:
                raise too_large
        return bytes(content)

    async def _answered(
        self, http: HttpRequest, body: ChatRequest | CompletionRequest, prompts: Sequence[list[int]]
    ) -> Response:
        chat, loop = isinstance(body, ChatRequest), asyncio.get_running_loop()
        requests = [Request(http.state.client, each, await self._options(body, each), loop, continues=not chat)
                    for each in prompts]  # fmt: skip
        frame = Frame("chat" if chat else "completion", self.name, self._token_bytes)
        try:
            for request in requests:
                self.decoding.submit(request)
        except Busy:
            self._cancel(requests)
            raise
        if body.stream:
            return EventStream(self._events(requests, frame, body.usage_in_stream), self.limits.read_seconds)
        return await self._whole(http, requests, frame)

    async def _options(self, body: ChatRequest | CompletionRequest, prompt: list[int]) -> Options:
        """AMK014 for a prompt without room, AMK005 and AMK015 for what cannot be done."""
        check_room(prompt, self.model.spec.vocab, self.model.context)
        most = min(self.limits.tokens, self.model.context - len(prompt) + 1)
        return await asyncio.to_thread(self.model.restricted, body.options(most, self._defaults))

    def _cancel(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.decoding.cancel(request)

    async def _whole(self, http: HttpRequest, requests: list[Request], frame: Frame) -> Response:
        """The answers at once, unless the client goes before."""
        collecting = asyncio.create_task(_collected(requests))
        gone = asyncio.create_task(client_gone(http.receive))
        try:
            await asyncio.wait((collecting, gone), return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                return Response(status_code=CLOSED_REQUEST)
            completions = collecting.result()
            return JSONResponse(await asyncio.to_thread(frame.whole, completions))
        finally:
            self._cancel(requests)
            for task in (collecting, gone):
                task.cancel()

    async def _events(self, requests: list[Request], frame: Frame, with_usage: bool) -> AsyncIterator[bytes]:
        """The answers piece by piece; an error ends them with an event of its own."""
        total = Usage(0, 0, 0)
        try:
            if (first := frame.first()) is not None:
                yield event(first)
            for index, request in enumerate(requests):
                async for piece in _items(request):
                    if isinstance(piece, Completion):
                        total = added(total, piece.usage)
                        yield event(frame.last(index, piece.finish))
                    elif (chunk := frame.piece(index, piece)) is not None:
                        yield event(chunk)
            if with_usage:
                yield event(frame.usage(total))
            yield event(None)
        except AmkError as error:
            yield event(body_of(error))
        finally:
            self._cancel(requests)

    async def _models(self, http: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _model(self, http: HttpRequest) -> Response:
        if http.path_params["name"] != self.name:
            raise Refused(404, f"this server has {self.name!r} only", "model_not_found")
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        positions = self.model.context
        return {"id": self.name, "object": "model", "created": 0, "owned_by": "amk", "max_model_len": positions}

    async def _health(self, http: HttpRequest) -> Response:
        """Does the process work?"""
        return _status(self.decoding.alive)

    async def _ready(self, http: HttpRequest) -> Response:
        """Does it take requests?"""
        return _status(self.decoding.ready)

    async def _metrics_text(self, http: HttpRequest) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")


class Counted:
    """Counts every response by path and status."""

    def __init__(self, app: Starlette, server: Server) -> None:
        self._app, self._metrics = app, server.metrics
        self._paths = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/health/ready", "/metrics"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counting)


def _status(well: bool) -> Response:
    return JSONResponse({"status": "ok" if well else "unavailable"}, 200 if well else 503)


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse(error_body(str(error), status=status), status, headers)


async def _items(request: Request) -> AsyncIterator[Piece | Completion]:
    """What comes of a request, up to its completion. Raises the error that ended it."""
    while True:
        item = await request.events.get()
        if isinstance(item, AmkError):
            raise item
        yield item
        if isinstance(item, Completion):
            return


async def _collected(requests: Sequence[Request]) -> list[Completion]:
    return [piece for request in requests async for piece in _items(request) if isinstance(piece, Completion)]
