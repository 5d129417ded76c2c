"""The cases of the suite as one table: the provider's answer, the client's behaviour, the true cost. Pure.

Invariants: every case has its own model, so that a bill by model is a bill by case. A case's price is in USD for one
exchange at PRICES; if it is None, no price is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import partial
from types import MappingProxyType

from proxy.conformance.answers import (
    CALL_TOKENS,
    CUMULATIVE,
    IN_LAST_CHUNK,
    PROMPT_TOKENS,
    SHOWN_TEXT,
    THOUGHT,
    TOOL,
    Names,
    Piece,
    Scripted,
    answer,
    chat,
    chat_json,
    cut,
    edited,
    embeddings,
    gemini,
    generated,
    halting,
    late,
    message,
    messages,
    of_json,
    paced,
    response,
    responses,
    running,
    with_hidden,
    with_odd_lines,
)
from proxy.conformance.bedrock import converse, converse_json, invoked
from proxy.conformance.wires import (
    ANTHROPIC,
    BEDROCK,
    BEDROCK_INVOKE,
    CHAT,
    EMBEDDINGS,
    GEMINI,
    RESPONSES,
    VERTEX,
    VERTEX_ANTHROPIC,
    Wire,
)
from proxy.demo.script import Cut, Fin, Reset
from proxy.demo.shapes import Json, error_object, sse

# The prices to configure at the gateway for every model of the suite: USD per million tokens, and per 1,000 searches.
PRICES: Mapping[str, Decimal] = MappingProxyType(
    {
        "input": Decimal(2),
        "cached_input": Decimal("0.5"),
        "cache_write": Decimal("2.5"),
        "cache_write_1h": Decimal(4),
        "output": Decimal(8),
        "searches": Decimal(10),
    }
)
# The factors to configure for tiers and speeds: each multiplies the token prices.
MULTIPLIERS: Mapping[str, Decimal] = MappingProxyType(
    {"tier:priority": Decimal(2), "tier:flex": Decimal("0.5"), "speed:fast": Decimal(6)}
)
# And of the model that draws: USD per million tokens.
IMAGE_MODEL = "conformance-images"
IMAGE_PRICES: Mapping[str, Decimal] = MappingProxyType({"input": Decimal(5), "output": Decimal(40)})

# Between two tokens of a slow stream.
PACE_MS = 10
# Silence after the tokens that a client reads before it leaves or the gateway is killed: long enough for both.
HALT_MS = 3_000
LEFT_AFTER, KILLED_AFTER = 40, 48
# For cases in which the provider ends first, so that no gateway lags behind.
SOON_MS = 5
LATE_MS = 1_500


@dataclass(frozen=True, slots=True)
class ClientBehaviour:
    """The client's behaviour in a case."""

    streams: bool = True
    include_usage: bool | None = None
    """`stream_options.include_usage`; None: absent"""
    leaves_after: int | None = None
    """number of events after which the client closes the connection; 0: before the answer begins"""
    times: int = 1
    at_once: bool = False
    """the client sends all requests at once, not one after the other"""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the scoreboard."""

    name: str
    wire: Wire
    what: str
    build: Callable[[Names], Scripted]
    usd: Decimal | None = None
    client: ClientBehaviour = ClientBehaviour()
    same_id: bool = False
    """every answer has the same id, as with some servers"""
    prompt_due: bool = True
    """False: some providers bill the prompt and some do not, so both bills are right"""
    first_ms: float = 0
    """delay of the provider's answer"""
    kills_after: int | None = None
    """number of events after which the gateway is killed; None: it is not"""

    @property
    def upstream_model(self) -> str:
        """The model name in the request to the provider; unique to the case."""
        return f"{self.wire.name}-{self.name}"

    @property
    def model(self) -> str:
        """The model name in the client's request."""
        return f"{self.wire.prefix}/{self.upstream_model}"

    @property
    def cut_short(self) -> bool:
        """True if the client does not receive the whole answer."""
        return self.client.leaves_after is not None or self.kills_after is not None


def selected(patterns: Sequence[str]) -> list[Case]:
    """The cases whose name (`chat-stream`) matches one of the patterns; all cases without patterns. Raises ValueError
    for a pattern that matches no case."""
    names = [case.upstream_model for case in CASES]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no case has the name {pattern!r}: see --list")
    return [case for case in CASES if not patterns or any(fnmatchcase(case.upstream_model, one) for one in patterns)]


def usd(*, factor: Decimal = Decimal(1), searches: int = 0, **tokens: int) -> Decimal:
    """The price of an exchange: tokens by kind of price, times `factor`, and searches."""
    millionths = sum((PRICES[kind] * count for kind, count in tokens.items()), Decimal(0))
    return (millionths * factor) / 1_000_000 + PRICES["searches"] * searches / 1_000


def _with(**fields: object) -> Callable[[Json], Json]:
    """Adds fields to each document of an answer."""
    return lambda document: document | fields


def _in_message_start(**fields: object) -> Callable[[Json], Json]:
    """Adds fields to the usage in the first event of an Anthropic stream."""

    def edit(event: Json) -> Json:
        if event["type"] != "message_start":
            return event
        begun = event["message"]
        return event | {"message": begun | {"usage": begun["usage"] | fields}}

    return edit


def _with_choice(chunk: Json) -> Json:
    """Moves the usage to a chunk with an empty choice, as some servers send it."""
    if chunk["choices"] or "usage" not in chunk:
        return chunk
    return chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": None}]}


def _plain(names: Names) -> Scripted:
    return chat(answer(names))


def _slow(build: Callable[[Names], Scripted]) -> Callable[[Names], Scripted]:
    return lambda names: paced(build(names), PACE_MS)


def _halting(build: Callable[[Names], Scripted], tokens: int = LEFT_AFTER) -> Callable[[Names], Scripted]:
    return lambda names: halting(build(names), tokens, HALT_MS)


def _refused(_: Names) -> Scripted:
    return of_json(error_object("the mill is closed", "server_error"), None, 500)


def _failing(names: Names) -> Scripted:
    error = Piece(sse(error_object("the wheel broke", "server_error")))
    return paced(cut(_plain(names), 40, after=[error]), SOON_MS)


def _tool_call(names: Names, *, reports: bool = True) -> Scripted:
    return with_hidden(chat(answer(names, (), tool=TOOL), reports=reports), CALL_TOKENS)


def _images(names: Names) -> Scripted:
    drawn = {"input_tokens": 31, "output_tokens": 1_056, "total_tokens": 1_087}
    drawn_details = {"input_tokens_details": {"text_tokens": 31}, "output_tokens_details": {"image_tokens": 1_056}}
    more = {
        "tools": [{"type": "image_generation", "model": IMAGE_MODEL}],
        "tool_usage": {"image_gen": drawn | drawn_details},
    }
    return response(names, calls=[{"type": "image_generation_call", "result": "aGk="}], more=more)


def _searches(names: Names) -> Scripted:
    calls = [{"type": "web_search_call", "action": {"type": "search", "query": f"flour {day}"}} for day in range(3)]
    return response(names, calls=calls, more={"tool_usage": {"web_search": {"num_requests": 3}}})


_CACHE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 48,
    "cache_creation_input_tokens": 22,
    "cache_creation": {"ephemeral_5m_input_tokens": 14, "ephemeral_1h_input_tokens": 8},
}
# The counts of Converse, whose `inputTokens` exclude cached tokens.
_CONVERSE_CACHE = {
    "inputTokens": 10,
    "cacheReadInputTokens": 48,
    "cacheWriteInputTokens": 22,
    "cacheDetails": [{"ttl": "5m", "inputTokens": 14}, {"ttl": "1h", "inputTokens": 8}],
}
_CACHE_USD = usd(input=10, cached_input=48, cache_write=14, cache_write_1h=8, output=99)
_PLAIN_USD = usd(input=PROMPT_TOKENS, output=99)
_chat = partial(Case, wire=CHAT)
_responses = partial(Case, wire=RESPONSES)
_anthropic = partial(Case, wire=ANTHROPIC)
_gemini = partial(Case, wire=GEMINI)
_bedrock = partial(Case, wire=BEDROCK)
_invoke = partial(Case, wire=BEDROCK_INVOKE)
_vertex = partial(Case, wire=VERTEX)
_vertex_anthropic = partial(Case, wire=VERTEX_ANTHROPIC)
_JSON = ClientBehaviour(streams=False)

CASES: tuple[Case, ...] = (
    _chat("json", what="an answer that is not streamed", usd=_PLAIN_USD, client=_JSON,
          build=lambda names: chat_json(answer(names))),
    _chat("stream", what="usage comes only on request; the client does not request it", usd=_PLAIN_USD,
          build=_slow(_plain)),
    _chat("stream-asked", what="the client requests usage and must receive it", usd=_PLAIN_USD,
          client=ClientBehaviour(include_usage=True), build=_plain),
    _chat("stream-declined", what="the client sends include_usage: false", usd=_PLAIN_USD,
          client=ClientBehaviour(include_usage=False), build=_plain),
    _chat("usage-in-last-chunk", what="usage is in the chunk with the last words", usd=_PLAIN_USD,
          build=lambda names: chat(answer(names), IN_LAST_CHUNK)),
    _chat("usage-with-choice", what="the chunk with the usage has a choice", usd=_PLAIN_USD,
          build=lambda names: edited(_plain(names), _with_choice)),
    _chat("usage-running", what="every chunk has the usage so far", usd=_PLAIN_USD,
          build=lambda names: running(answer(names))),
    _chat("usage-late", what="usage comes a second and a half after the last words", usd=_PLAIN_USD,
          build=lambda names: late(_plain(names), LATE_MS)),
    _chat("usage-zero", what="an empty answer: 0 generated tokens are reported", usd=usd(input=PROMPT_TOKENS),
          build=lambda names: chat(answer(names, ()))),
    _chat("never-reported", what="no usage, although requested",
          build=lambda names: chat(answer(names), reports=False)),
    _chat("reasoning", what="60 of 99 tokens are reasoning, shown", usd=_PLAIN_USD,
          build=lambda names: chat(answer(names, SHOWN_TEXT, reasoning=THOUGHT))),
    _chat("reasoning-hidden", what="60 of 99 tokens are reasoning, reported and not shown", usd=_PLAIN_USD,
          build=lambda names: with_hidden(chat(answer(names, SHOWN_TEXT)), len(THOUGHT), kind="reasoning_tokens")),
    _chat("reasoning-never-reported", what="60 of 99 tokens are reasoning, no usage",
          build=lambda names: chat(answer(names, SHOWN_TEXT, reasoning=THOUGHT), reports=False)),
    _chat("tools", what="a call of a function", usd=usd(input=PROMPT_TOKENS, output=56),
          build=_tool_call),
    _chat("tools-never-reported", what="a call of a function, no usage",
          build=partial(_tool_call, reports=False)),
    _chat("cached", what="64 of 80 prompt tokens were cached", usd=usd(input=16, cached_input=64, output=99),
          build=lambda names: chat(answer(names, cached_tokens=64))),
    _chat("tier-priority", what="served at the priority tier",
          usd=usd(input=PROMPT_TOKENS, output=99, factor=MULTIPLIERS["tier:priority"]),
          build=lambda names: edited(_plain(names), _with(service_tier="priority"))),
    _chat("tier-flex", what="served at the flex tier",
          usd=usd(input=PROMPT_TOKENS, output=99, factor=MULTIPLIERS["tier:flex"]),
          build=lambda names: edited(_plain(names), _with(service_tier="flex"))),
    _chat("two-choices", what="two answers in one stream", usd=usd(input=PROMPT_TOKENS, output=198),
          build=lambda names: chat(answer(names, choices=2))),
    _chat("cumulative-text", what="each chunk repeats all text so far, no usage",
          build=lambda names: chat(answer(names), CUMULATIVE, reports=False)),
    _chat("by-byte", what="the provider writes single bytes", usd=_PLAIN_USD,
          build=lambda names: replace(_plain(names), wire=Cut(size=1))),
    _chat("odd-lines", what="CRLF, comments, no blank after the colon", usd=_PLAIN_USD,
          build=lambda names: with_odd_lines(_plain(names))),
    _chat("gzip", what="compressed, even if not requested", usd=_PLAIN_USD,
          build=lambda names: replace(_plain(names), gzip=True)),
    _chat("same-id", what="three answers with the same id", usd=_PLAIN_USD, client=ClientBehaviour(times=3),
          same_id=True, build=_plain),
    _chat("busy", what="twenty at once", usd=_PLAIN_USD, client=ClientBehaviour(times=20, at_once=True),
          build=_plain),
    _chat("error-before", what="status 500: nothing was generated", usd=Decimal(0), build=_refused),
    _chat("error-in-stream", what="an error event after 40 tokens", build=_failing),
    _chat("breaks-off", what="the provider closes after 60 tokens",
          build=lambda names: paced(cut(_plain(names), 60, Fin()), SOON_MS)),
    _chat("reset", what="the provider resets the connection after 60 tokens",
          build=lambda names: paced(cut(_plain(names), 60, Reset()), SOON_MS)),
    _chat("client-leaves", what="the client leaves after 40 tokens", client=ClientBehaviour(leaves_after=41),
          build=_halting(_plain)),
    _chat("client-leaves-early", what="the client leaves before the answer", client=ClientBehaviour(leaves_after=0),
          prompt_due=False, first_ms=HALT_MS, build=_slow(_plain)),
    _chat("killed", what="the gateway is killed after 48 tokens", kills_after=49,
          build=_halting(_plain, KILLED_AFTER)),
    Case("vector", EMBEDDINGS, "one vector", embeddings, usd(input=PROMPT_TOKENS), _JSON),
    _responses("json", what="an answer that is not streamed", usd=_PLAIN_USD, client=_JSON, build=response),
    _responses("stream", what="usage comes in the last event", usd=_PLAIN_USD, build=responses),
    _responses("incomplete", what="ends by its limit: response.incomplete", usd=_PLAIN_USD,
               build=lambda names: responses(names, ends="incomplete")),
    _responses("images", what="a picture made by another model, counted outside the usage",
               usd=_PLAIN_USD + (IMAGE_PRICES["input"] * 31 + IMAGE_PRICES["output"] * 1_056) / 1_000_000,
               client=_JSON, build=_images),
    _responses("searches", what="three searches, counted outside the usage",
               usd=usd(input=PROMPT_TOKENS, output=99, searches=3), client=_JSON,
               build=_searches),
    _responses("client-leaves", what="the client leaves after 40 tokens", client=ClientBehaviour(leaves_after=43),
               build=_halting(responses)),
    _anthropic("json", what="an answer that is not streamed", usd=_PLAIN_USD, client=_JSON, build=message),
    _anthropic("stream", what="prompt in the first event, completion in the last", usd=_PLAIN_USD, build=messages),
    _anthropic("cache", what="read from the cache, and written to it for 5 minutes and for an hour",
               usd=_CACHE_USD, build=lambda names: messages(names, _CACHE)),
    _anthropic("fast", what="served in fast mode",
               usd=usd(input=PROMPT_TOKENS, output=99, factor=MULTIPLIERS["speed:fast"]),
               build=lambda names: edited(messages(names), _in_message_start(speed="fast"))),
    _anthropic("client-leaves", what="the client leaves after 40 tokens", client=ClientBehaviour(leaves_after=43),
               build=_halting(messages)),
    _gemini("json", what="an answer that is not streamed", usd=_PLAIN_USD, client=_JSON, build=generated),
    _gemini("stream", what="every event has the usage so far", usd=_PLAIN_USD, build=gemini),
    _gemini("thoughts", what="60 tokens of hidden thoughts in addition to the answer's 99",
            usd=usd(input=PROMPT_TOKENS, output=159), build=lambda names: gemini(names, thoughts=60)),
    _gemini("client-leaves", what="the client leaves after 40 tokens", client=ClientBehaviour(leaves_after=40),
            build=_halting(gemini)),
    _bedrock("json", what="an answer of Converse that is not streamed", usd=_PLAIN_USD, client=_JSON,
             build=converse_json),
    _bedrock("stream", what="a binary stream; usage comes in the last message", usd=_PLAIN_USD, build=_slow(converse)),
    _bedrock("cache", what="read from the cache, and written to it for 5 minutes and for an hour", usd=_CACHE_USD,
             build=lambda names: converse(names, _CONVERSE_CACHE)),
    _bedrock("by-byte", what="the provider writes single bytes of a binary stream", usd=_PLAIN_USD,
             build=lambda names: replace(converse(names), wire=Cut(size=1))),
    _bedrock("breaks-off", what="the provider closes after 60 tokens",
             build=lambda names: paced(cut(converse(names), 60, Fin()), SOON_MS)),
    _bedrock("client-leaves", what="the client leaves after 40 tokens", client=ClientBehaviour(leaves_after=41),
             build=_halting(converse)),
    _invoke("json", what="Anthropic's message by InvokeModel", usd=_PLAIN_USD, client=_JSON, build=message),
    _invoke("stream", what="an Anthropic message by InvokeModel: events in base64, in a binary stream", usd=_PLAIN_USD,
            build=invoked),
    _vertex("json", what="Gemini's answer at Vertex AI's path", usd=_PLAIN_USD, client=_JSON, build=generated),
    _vertex("stream", what="every event has the usage so far", usd=_PLAIN_USD, build=gemini),
    _vertex_anthropic("json", what="Anthropic's message by rawPredict", usd=_PLAIN_USD, client=_JSON, build=message),
    _vertex_anthropic("stream", what="prompt in the first event, completion in the last", usd=_PLAIN_USD,
                      build=messages),
)  # fmt: skip
