"""One deployment that many tests share: a provider section for each policy, chosen by the first part of a model's name.

Law: a test names its own models, so that what it asked for, what the provider saw and what the ledger says are found by
that name. `cancel/tale` is the plan `tale` of the scripted provider, under the policy `cancel`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.script import AnyStep, Script, Shape
from tests.support.net import RawClient, Response, ask, chat_request, closed_port, connect
from tests.support.provider import ScriptedProvider
from tests.support.tokenizer import every_character
from tests.support.tokenweir import COST, FILE_POLL_S, PRICE, Tokenweir, provider_section

# Long beside a loaded machine's hiccups, short beside a test: what must not happen within it, does not.
SOON_S = 20.0
# What a slow client may cost a test; long enough that a client that reads is never taken for one that does not.
WRITE_STALL_S = 1.5
# Of the models named `units/…`, in USD: per million tokens and characters, per image, hour, 1,000 searches.
UNIT_PRICE = {**PRICE, "image": 0.04, "audio_hour": 0.36, "characters": 15, "searches": 2, "pages": 4}

# The longest answer that the models of the provider section `small` can give.
SMALL_TOKENS = 2

_numbers = itertools.count()


def policies(base_url: str) -> dict[str, dict[str, Any]]:
    """Provider sections by name; all lead to the scripted provider unless said otherwise."""

    def section(**settings: Any) -> dict[str, Any]:
        return provider_section(base_url, **settings)

    spoken = ["openai", "anthropic", "azure", "mistral", "cohere", "ollama", "gemini", "bedrock", "vertex"]
    closed = f"http://127.0.0.1:{closed_port()}/v1"
    return {
        "cancel": section(on_client_disconnect="cancel"),
        "drain": section(on_client_disconnect="drain", drain={"seconds": 60, "tokens": 100_000}),
        "drain-briefly": section(on_client_disconnect="drain", drain={"seconds": 0.4, "tokens": 100_000}),
        "drain-little": section(on_client_disconnect="drain", drain={"seconds": 60, "tokens": 20}),
        "impatient": section(timeouts={"connect_s": 0.3, "first_byte_s": 0.35, "idle_s": 0.4, "total_s": 60}),
        "prompt": section(timeouts={"connect_s": 0.2, "first_byte_s": 0.4, "idle_s": 5, "total_s": 0.6}),
        "short": section(timeouts={"connect_s": 5, "first_byte_s": 60, "idle_s": 60, "total_s": 0.5}),
        "beating": section(heartbeat_s=0.08),
        "never": section(inject_usage="never"),
        "headers": section(
            headers={
                "up": {"OpenAI-Project": "proj_ours", "X-Gateway": "canary-of-a-gateway-77"},
                "pass_up": ["User-Agent", "X-Team-*", "OpenAI-Project"],
                "pass_down": ["x-ratelimit-*", "anthropic-ratelimit-*"],
            }
        ),
        "always": section(inject_usage="always"),
        "many": section(dialects=spoken, on_client_disconnect="cancel"),
        "many-briefly": section(
            dialects=spoken,
            timeouts={"connect_s": 5, "first_byte_s": 60, "idle_s": 0.3, "total_s": 60},
        ),
        "nowhere": provider_section("http://no-such-host.invalid/v1"),
        "refusing": provider_section(closed),
        "small": section(),
    }


class Deployment:
    """The proxy with these policies, a key for it, and its ledger."""

    def __init__(self, folder: Path, provider: ScriptedProvider, **settings: Any) -> None:
        """`settings`: more of the configuration."""
        sections = policies(provider.base_url)
        models: dict[str, dict[str, Any]] = {
            f"{name}/*": {"provider": name, "price": PRICE, "cost": COST} for name in sections
        }
        models["small/*"]["completion_tokens_max"] = SMALL_TOKENS
        with suppress(ImportError):  # tests that need it skip
            tokenizer = every_character(folder / "tokenizer.json").name  # a relative path begins at the configuration
            models["counted/*"] = models["drain/*"] | {"provider": "cancel", "tokenizer": tokenizer}
        models |= {"units/*": {"provider": "many", "price": UNIT_PRICE}, "unpriced/*": {"provider": "many"}}
        self.provider = provider
        self._by_model: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._looked_at = 0
        settings = {"write_stall_s": WRITE_STALL_S, **settings}
        self.tokenweir = Tokenweir(folder, providers=sections, models=models, **settings)
        try:
            self.tokenweir.start()
            self.key = self.tokenweir.key()
        except BaseException:
            self.tokenweir.close()
            raise

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.tokenweir.url

    @property
    def pid(self) -> int:
        """The proxy's process."""
        assert self.tokenweir.child is not None
        return self.tokenweir.child.pid

    def plan(self, policy: str, plan: Script | Shape | Sequence[AnyStep], name: str = "plan") -> str:
        """Register a plan under a name of its own; the model to ask for."""
        return f"{policy}/{self.provider.script(f'{name}-{next(_numbers)}', plan)}"

    def request(self, model: str, *, headers: dict[str, str] | None = None, **options: Any) -> bytes:
        """The bytes of a chat request for `model`."""
        return chat_request(ask(model, **options), key=self.key, headers=headers)

    async def post(self, model: str, *, timeout_s: float = SOON_S, **options: Any) -> Response:
        """One request over a connection of its own, read to its end."""
        async with await connect(self.url) as client:
            await client.send(self.request(model, **options))
            return await client.read(timeout_s)

    async def exchange(
        self, policy: str, plan: Script | Shape | Sequence[AnyStep], **options: Any
    ) -> tuple[Response, dict[str, Any]]:
        """One request that the provider answers by `plan`: its answer and its entry."""
        model = self.plan(policy, plan)
        return await self.post(model, **options), await self.entry(model)

    async def begin(self, model: str, *, receive_buffer_bytes: int | None = None, **options: Any) -> RawClient:
        """A client that has sent its request and read nothing yet."""
        client = await connect(self.url, receive_buffer_bytes=receive_buffer_bytes)
        await client.send(self.request(model, **options))
        return client

    def seen(self, model: str) -> list[dict[str, Any]]:
        """What the provider saw of `model`, live."""
        return self.provider.log(model.partition("/")[2])

    async def seen_until(self, model: str, field: str) -> dict[str, Any]:
        """The one exchange of `model` at the provider once `field` of it is known."""
        deadline = time.monotonic() + SOON_S
        while not ((log := self.seen(model)) and log[0][field] is not None):
            assert time.monotonic() < deadline, f"the provider's log is not as expected: {log}"
            await asyncio.sleep(0.02)
        (one,) = log
        return one

    async def entries(self, model: str, count: int = 1) -> list[dict[str, Any]]:
        """The ledger's entries of `model`: exactly so many."""
        deadline = time.monotonic() + SOON_S
        while len(found := self._entries_so_far(model)) < count:
            assert time.monotonic() < deadline, f"{len(found)} entries of {model}, not {count}:\n{self.log_tail()}"
            await asyncio.sleep(FILE_POLL_S)
        assert len({entry["exchange_id"] for entry in found}) == len(found) == count
        return found

    def _entries_so_far(self, model: str) -> list[dict[str, Any]]:
        entries = self.tokenweir.read_ledger()
        for entry in entries[self._looked_at :]:
            self._by_model[entry["model"]].append(entry)
        self._looked_at = len(entries)
        return self._by_model[model]

    async def entry(self, model: str) -> dict[str, Any]:
        """The ledger's one entry of `model`."""
        (one,) = await self.entries(model)
        return one

    def log_tail(self) -> str:
        """The end of the proxy's log."""
        return self.tokenweir.log.read_text()[-2000:]

    def close(self) -> None:
        """Stop it, and see that it ended well: nothing open, nothing doubled, no bug of ours in the log."""
        assert self.tokenweir.stop() == 0, self.log_tail()
        entries = self.tokenweir.read_ledger()
        assert len({entry["exchange_id"] for entry in entries}) == len(entries)
        assert not [entry for entry in entries if entry["outcome"] == "crashed"]
        assert "Traceback" not in self.tokenweir.log.read_text(), self.log_tail()
        self.tokenweir.close()


def charge(entry: dict[str, Any], *, prompt: bool = True, output: bool = True) -> int:
    """What `entry` must cost by the test's price, in nano-USD, from its own token counts (no cached ones)."""
    assert not entry["cached_tokens"]
    units = entry["details"].get("units", {})
    asked = (entry["prompt_tokens"] or 0) - units.get("unbilled_prompt_tokens", 0)
    told = (entry["completion_tokens"] or 0) - units.get("unbilled_completion_tokens", 0)
    input_nusd = round(PRICE["input"] * 1000) * asked if prompt else 0
    output_nusd = round(PRICE["output"] * 1000) * told if output else 0
    return input_nusd + output_nusd


def nusd(entry: dict[str, Any]) -> int:
    """What `entry` was billed, in nano-USD."""
    whole, _, part = entry["charge_usd"].partition(".")
    return int(whole) * 10**9 + int(part.ljust(9, "0"))


@pytest.fixture(scope="session")
def deployment_process(
    tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider
) -> Iterator[Deployment]:
    """One proxy process for the whole test session; how it ends is part of the test."""
    deployment = Deployment(tmp_path_factory.mktemp("gateway"), provider_process)
    yield deployment
    deployment.close()


@pytest.fixture
def deployment(deployment_process: Deployment, provider: ScriptedProvider) -> Deployment:
    """The shared deployment, its provider with no plans and an empty log."""
    assert provider is deployment_process.provider
    return deployment_process
