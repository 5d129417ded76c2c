"""A deployment whose keys have limits."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from proxy.billing.reservation import CounterState
from proxy.budgets.open_budgets import open_budgets
from proxy.demo.script import Shape
from proxy.demo.shapes import DONE, sse, words
from proxy.settings import load
from tests.support.net import Response, ask, chat_request, connect
from tests.support.provider import ScriptedProvider, sends
from tests.support.tokenweir import Tokenweir, provider_section
from tests.support.waiting import until

# One generated token costs a thousand nano-USD, a prompt nothing: sums can be done in one's head.
PRICE = {"input": 0, "output": 1}

MANY = ["openai", "anthropic", "azure", "mistral", "cohere", "ollama", "gemini", "bedrock", "vertex"]

SOON_S = 15.0

_numbers = itertools.count(1)


class Limited:
    """A deployment, and its keys with limits."""

    def __init__(self, tokenweir: Tokenweir, provider: ScriptedProvider) -> None:
        self.tokenweir = tokenweir
        self.provider = provider

    @property
    def url(self) -> str:
        return self.tokenweir.url

    def key(self, *options: str) -> tuple[str, str]:
        """A new key with these options: its id, its secret."""
        made = self.change("keys", "create", "--alias", f"key-{next(_numbers)}", *options)
        return made["key_id"], made["key"]

    def change(self, *arguments: str) -> dict[str, Any]:
        return self.tokenweir.change(*arguments)

    def model(self, tokens: int = 100, **shape: Any) -> str:
        return self.provider.script(f"m{next(_numbers)}", Shape("openai", tokens=tokens, **shape))

    def long_model(self, tokens: int, *, pace_ms: float = 0) -> str:
        """A model that streams so many tokens, twenty in each event."""
        parts = words(tokens)
        texts = ["".join(parts[at : at + 20]) for at in range(0, tokens, 20)]
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        events = [sse({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]
        events += [sse({"choices": [], "usage": usage}), DONE]
        steps = sends(events, pace_ms=pace_ms, tokens=[20] * len(texts) + [0, 0])
        return self.provider.script(f"m{next(_numbers)}", steps)

    async def post(
        self, key: str, model: str, *, stream: bool = False, max_tokens: int | None = 100, **options: Any
    ) -> Response:
        """One request, read to its end. `options`: headers, and more of the body."""
        headers = options.pop("headers", None)
        limit: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
        body = ask(model, stream=stream, **limit, **options)
        async with await connect(self.url) as client:
            await client.send(chat_request(body, key=key, headers=headers))
            return await client.read(SOON_S)

    async def until_served(self, key: str, model: str, *, within_s: float = SOON_S, **options: Any) -> None:
        async def is_served() -> bool:
            return (await self.post(key, model, **options)).status == 200

        await until(is_served, within_s=within_s, poll_s=0.05)

    async def many(self, key: str, model: str, count: int, **options: Any) -> list[Response]:
        return await asyncio.gather(*(self.post(key, model, **options) for _ in range(count)))

    def entries(self, key_id: str, count: int) -> list[dict[str, Any]]:
        """The key's entries, once there are so many; and there are no more."""

        def of_key(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [entry for entry in entries if entry["key_id"] == key_id]

        found = of_key(self.tokenweir.until(lambda entries: len(of_key(entries)) >= count, timeout_s=SOON_S))
        assert len(found) == count
        return found

    def counters(self) -> dict[str, dict[str, Any]]:
        """Every counter as `tokenweir budgets show` tells it."""
        printed = self.tokenweir.command("budgets", "show", "--json").stdout
        return {one["counter_id"]: one for one in map(json.loads, printed.splitlines())}

    async def counter(self, counter_id: str) -> CounterState:
        """How it stands, asked without starting a process."""
        async with aclosing(open_budgets(load(self.tokenweir.config, self.tokenweir.environment), "test")) as store:
            found = await store.counter_states([counter_id])
        return found[0] if found else CounterState(counter_id, 0.0, None, 0, 0, 0)

    async def until_counter(
        self, counter_id: str, holds: Callable[[CounterState], bool], *, within_s: float = SOON_S
    ) -> CounterState:
        until = time.monotonic() + within_s
        while not holds(counter := await self.counter(counter_id)):
            assert time.monotonic() < until, counter
            await asyncio.sleep(0.05)
        return counter

    async def at_rest(self, counter_id: str, *, within_s: float = SOON_S) -> CounterState:
        """The same once nothing is held there, open or on its way."""
        return await self.until_counter(
            counter_id, lambda one: (one.reserved, one.open, one.closed) == (0, 0, 0), within_s=within_s
        )


def ask_at(url: str, path: str, key: str, **headers: str) -> tuple[int, Any]:
    """Status and document of one answer."""
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


async def get(limited: Limited, path: str, key: str, **headers: str) -> Any:
    """The document of an answer with status 200."""
    status, document = await asyncio.to_thread(ask_at, limited.url, path, key, **headers)
    assert status == 200, document
    return document


def code(response: Response) -> str:
    found: str = json.loads(response.body)["error"]["code"]
    return found


def served(responses: list[Response]) -> int:
    """How many were served; the others must have been refused."""
    found = [one.status for one in responses]
    assert set(found) <= {200, 402, 429, 503}, found
    return found.count(200)


def deployment(folder: Path, provider: ScriptedProvider, **settings: Any) -> Tokenweir:
    """One machine, unless it is given more. Not started."""
    models = {
        "*": {"provider": "scripted", "price": PRICE, "cost": PRICE},
        "priceless/*": {"provider": "scripted"},
        "listed/*": {"provider": "openai"},
    }
    section = provider_section(provider.base_url)
    models["many/*"] = {"provider": "many", "price": PRICE}
    models["both/*"] = {"providers": ["scripted", "openai"], "price": PRICE}
    sections = {"scripted": section, "openai": section, "many": provider_section(provider.base_url, dialects=MANY)}
    return Tokenweir(folder, providers=sections, models=models, **settings)


async def begin(
    limited: Limited, key: str, stack: AsyncExitStack, model: str, max_tokens: int
) -> Callable[[], Awaitable[Response]]:
    """A stream that runs, to be read to its end."""
    client = await stack.enter_async_context(await connect(limited.url))
    await client.send(chat_request(ask(model, max_tokens=max_tokens), key=key))
    head = await client.read_head(SOON_S)
    assert head.status == 200
    return partial(client.read_body, head)


async def reservation(limited: Limited, key: str, stack: AsyncExitStack, count: int) -> None:
    """So many streams that run."""
    model = limited.model(100, pace_ms=500)
    for _ in range(count):
        await begin(limited, key, stack, model, 100)
