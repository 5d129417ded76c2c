"""The provider behind the gateway: it answers by case, and its log is the truth.

Invariants: what an exchange cost is what its answer reported, if it was written to its end; else what was generated
until then. An exchange whose case is unknown is refused and costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from proxy.conformance.answers import PROMPT_TOKENS, Names, Scripted
from proxy.conformance.cases import Case
from proxy.demo.answers import Reply
from proxy.demo.provider import Connection, Exchange, Provider, Request, named
from proxy.demo.script import json_script
from proxy.demo.shapes import error_object


@dataclass(frozen=True, slots=True)
class Served:
    """One exchange as the provider saw it."""

    exchange: Exchange
    scripted: Scripted
    asked: bool
    """the gateway asked for the usage"""

    @property
    def reported(self) -> bool:
        """Whether the answer said its usage, to its end."""
        return self.exchange.ended == "served" and self.scripted.reports(asked=self.asked)

    @property
    def prompt_tokens(self) -> int:
        """Of a request that was not refused."""
        return PROMPT_TOKENS if self.scripted.status == 200 else 0

    @property
    def completion_tokens(self) -> int:
        """What is to be billed."""
        usage = self.scripted.usage
        return usage.completion_tokens if usage is not None and self.reported else self.exchange.completion_tokens


@dataclass(slots=True)
class CaseProvider(Provider):
    """Answers each request by the case that its model names."""

    cases: Mapping[str, Case] = field(default_factory=dict)
    """by upstream model"""
    served: dict[str, list[Served]] = field(default_factory=dict)
    """by upstream model"""

    def reply_to(self, request: Request, body: Any, exchange: Exchange) -> Reply:
        """Choose the answer of a request."""
        # A gateway may pass a model's whole name, or what follows the slash.
        case = self.cases.get((named(request.path, body) or "").rpartition("/")[2])
        if case is None:
            return Reply(json_script(error_object(f"no such case: {request.method} {request.path}"), 404))
        response_id = f"{case.upstream_model}-{0 if case.same_id else exchange.exchange}"
        names = Names(response_id, case.upstream_model)
        scripted = case.build(names) if _streams(request, body) or not case.client.streams else case.wire.whole(names)
        asked = _asks(body)
        self.served.setdefault(case.upstream_model, []).append(Served(exchange, scripted, asked))
        script = structs.replace(scripted.script(asked=asked), delay_ms=case.first_ms)
        return Reply(script, response_id, PROMPT_TOKENS)


def _streams(request: Request, body: Any) -> bool:
    """Whether the gateway wants a stream: some ask for the whole answer, and make a stream of it themselves."""
    by_path = ":stream" in request.target or request.path.endswith("-stream")
    return by_path or (isinstance(body, dict) and body.get("stream") is True)


def _asks(body: Any) -> bool:
    options = body.get("stream_options") if isinstance(body, dict) else None
    return isinstance(options, dict) and options.get("include_usage") is True


async def listen(cases: Iterable[Case], host: str, port: int) -> tuple[CaseProvider, asyncio.Server]:
    """Begin to serve `cases`. Raises OSError."""
    provider = CaseProvider({}, cases={case.upstream_model: case for case in cases})
    server = await asyncio.get_running_loop().create_server(lambda: Connection(provider), host, port)
    return provider, server
