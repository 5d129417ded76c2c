"""The scripted provider behind the gateway. It answers by case, and its log is the truth.

Invariants: the true usage of an exchange is the reported usage if the answer was written to its end, else the tokens
generated until then. A request for an unknown case is refused and costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from proxy.conformance.answers import PROMPT_TOKENS, Names, Scripted
from proxy.conformance.cases import Case
from proxy.demo.answers import ScriptedReply
from proxy.demo.provider import Connection, LoggedExchange, Request, ScriptedProvider, named
from proxy.demo.script import json_script
from proxy.demo.shapes import error_object


@dataclass(frozen=True, slots=True)
class Served:
    """One exchange in the provider's log."""

    exchange: LoggedExchange
    scripted: Scripted
    usage_requested: bool
    """the gateway asked for usage"""

    @property
    def reported(self) -> bool:
        """True if the answer was written to its end and reported its usage."""
        return self.exchange.ended == "served" and self.scripted.reports(with_usage=self.usage_requested)

    @property
    def prompt_tokens(self) -> int:
        """The prompt tokens; 0 for a refused request."""
        return PROMPT_TOKENS if self.scripted.status == 200 else 0

    @property
    def completion_tokens(self) -> int:
        """The completion tokens that are due: reported, or else generated."""
        usage = self.scripted.usage
        return usage.completion_tokens if usage is not None and self.reported else self.exchange.completion_tokens


@dataclass(slots=True)
class CaseProvider(ScriptedProvider):
    """Answers each request by the case of its model."""

    cases: Mapping[str, Case] = field(default_factory=dict)
    """upstream model → case"""
    served: dict[str, list[Served]] = field(default_factory=dict)
    """upstream model → its exchanges"""

    def reply_to(self, request: Request, body: Any, exchange: LoggedExchange) -> ScriptedReply:
        """Choose the answer of a request."""
        # A gateway may pass a model's whole name, or what follows the slash.
        case = self.cases.get((named(request.path, body) or "").rpartition("/")[2])
        if case is None:
            return ScriptedReply(json_script(error_object(f"no such case: {request.method} {request.path}"), 404))
        response_id = f"{case.upstream_model}-{0 if case.same_id else exchange.exchange}"
        names = Names(response_id, case.upstream_model)
        scripted = case.build(names) if _streams(request, body) or not case.client.streams else case.wire.whole(names)
        usage_requested = _requests_usage(body)
        self.served.setdefault(case.upstream_model, []).append(Served(exchange, scripted, usage_requested))
        script = structs.replace(scripted.script(with_usage=usage_requested), delay_ms=case.first_ms)
        return ScriptedReply(script, response_id, PROMPT_TOKENS)


def _streams(request: Request, body: Any) -> bool:
    """True if the gateway requests a stream; some request a whole answer and stream it themselves."""
    by_path = ":stream" in request.target or request.path.endswith("-stream")
    return by_path or (isinstance(body, dict) and body.get("stream") is True)


def _requests_usage(body: Any) -> bool:
    options = body.get("stream_options") if isinstance(body, dict) else None
    return isinstance(options, dict) and options.get("include_usage") is True


async def listen(cases: Iterable[Case], host: str, port: int) -> tuple[CaseProvider, asyncio.Server]:
    """Start serving `cases`. Raises OSError."""
    provider = CaseProvider({}, cases={case.upstream_model: case for case in cases})
    server = await asyncio.get_running_loop().create_server(lambda: Connection(provider), host, port)
    return provider, server
