"""One deployment in front of the four systems, configured as their own pages ask for.

Law: a test names its own models, so that what it asked for, what the provider saw and what the ledger says are found by
that name: `tera/plain-7` is the plan `plain-7` at the scripted provider, reached the way Tera is.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from proxy.demo.script import Script, Shape
from proxy.keys.secrets import digest, hint, load_pepper, new_secret
from proxy.ledger.accounts.key_store import KeyStore
from proxy.storage.database import open_engine, sqlite_url
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

# Long beside a loaded machine's hiccups, short beside a test that hangs.
SOON_S = 20.0
# The names that the providers' own samples ask for, and how those systems write.
SAMPLE_MODELS = {
    "Qwen/Qwen2.5-7B-Instruct": ("tera", Shape("tera")),
    "Qwen/Qwen3.5-27B": ("tera", Shape("tera", writes="reasoning")),
    "gpt-4o-mini": ("tensorloop", Shape("tensorloop")),
    "DeepSeek-R1": ("siliconstorm", Shape("siliconstorm")),
    "electron": ("electron", Shape("electron")),
}

_numbers = itertools.count(1)


def systems(url: str) -> dict[str, dict[str, Any]]:
    """The four, three of them in variants, and those of other languages."""
    v1, waves = f"{url}/v1", f"{url}/waves/v1"
    drain = {"seconds": 60, "tokens": 8192}
    return {
        "tera": provider_section(v1, on_client_disconnect="cancel"),
        "tensorloop": provider_section(v1, on_client_disconnect="drain", drain=drain),
        "siliconstorm": provider_section(v1, on_client_disconnect="cancel"),
        "siliconstorm-fulltext": provider_section(v1, on_client_disconnect="cancel", cumulative=True),
        "siliconstorm-fragments": provider_section(v1, on_client_disconnect="cancel", cumulative=False),
        "electron": provider_section(waves, on_client_disconnect="drain", drain=drain),
        "electron-cancel": provider_section(waves, on_client_disconnect="cancel"),
        "anthropic": provider_section(v1, on_client_disconnect="cancel", dialects=["anthropic"]),
        "gemini": provider_section(v1, on_client_disconnect="cancel", dialects=["gemini"]),
        "bedrock": provider_section(url, on_client_disconnect="cancel", dialects=["bedrock"]),
        "vertex": provider_section(
            f"{url}/v1/projects/ours/locations/here", on_client_disconnect="cancel", dialects=["vertex"]
        ),
    }


@dataclass(frozen=True, slots=True)
class Minted:
    """A key's secret, and its name in the ledger."""

    secret: str
    key_id: str


class Stand:
    """The proxy, the provider behind it, a key, and what the ledger says."""

    def __init__(self, folder: Path, provider: ScriptedProvider) -> None:
        sections = systems(provider.url)
        served_by = {f"{name}/*": name for name in sections}
        served_by |= {name: system for name, (system, _) in SAMPLE_MODELS.items()}
        models = {name: {"provider": system, "price": PRICE, "cost": COST} for name, system in served_by.items()}
        self.provider = provider
        self.tokenweir = Tokenweir(folder, providers=sections, models=models)
        try:
            self.tokenweir.start()
            self.key = self.mint("conformance").secret
            self.narrow = self.mint("narrow", ["gpt-4o-mini"])  # for one model only
        except BaseException:
            self.tokenweir.close()
            raise

    def mint(self, alias: str, models: Sequence[str] = ()) -> Minted:
        """A new key, made as `keys create` makes it but in this process: a command costs a second.

        It counts within a second; at once only where no wrong key was tried just before.
        """
        secret = new_secret().reveal()
        engine = open_engine(sqlite_url(self.tokenweir.folder / "data" / "ledger.db"))
        try:
            key = KeyStore(engine, clock=time.time).create(
                key_id=f"key_{token_hex(10)}",
                alias=alias,
                digest=digest(secret, load_pepper(self.tokenweir.folder / "data" / "pepper")),
                hint=hint(secret),
                models=models or None,
                expires_at=time.time() + 3600,
            )
        finally:
            engine.dispose()
        return Minted(secret, key.key_id)

    @property
    def base_url(self) -> str:
        return self.tokenweir.base_url

    @property
    def url(self) -> str:
        return self.tokenweir.url

    def plan(self, system: str, plan: Script | Shape, name: str = "plan") -> str:
        """Register a plan under a name of its own; the model to ask for."""
        return f"{system}/{self.provider.script(f'{name}-{next(_numbers)}', plan)}"

    def samples(self) -> None:
        """Let the provider know the models that the samples ask for."""
        for name, (_, shape) in SAMPLE_MODELS.items():
            self.provider.script(name, shape)

    def seen(self, model: str) -> list[dict[str, Any]]:
        """What the provider saw of `model`, live."""
        return self.provider.log(_upstream(model))

    def seen_until(self, model: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The one exchange of `model` at the provider, as soon as `holds` of it."""
        (one,) = self.provider.until(lambda log: bool(log) and holds(log[-1]), _upstream(model), timeout_s=SOON_S)
        return one

    def entries(self, model: str, count: int = 1) -> list[dict[str, Any]]:
        """The ledger's entries of `model`, the first begun first: exactly so many, each of another exchange."""
        self.tokenweir.entries_of(model, count, timeout_s=SOON_S)
        found = self._of(model)
        assert len({entry["exchange_id"] for entry in found}) == len(found) == count
        return found

    def entry(self, model: str) -> dict[str, Any]:
        (one,) = self.entries(model)
        return one

    @contextmanager
    def one_entry(self, model: str) -> Iterator[dict[str, Any]]:
        """Gives a dict that, after the block, holds the one entry that `model` gained in it."""
        before = len(self._of(model))
        gained: dict[str, Any] = {}
        yield gained
        gained.update(self.entries(model, before + 1)[-1])

    def _of(self, model: str) -> list[dict[str, Any]]:
        mine = [entry for entry in self.tokenweir.read_ledger() if entry["model"] == model]
        return sorted(mine, key=lambda entry: entry["started_at"])

    def close(self) -> None:
        assert self.tokenweir.stop() == 0, self.tokenweir.log_tail()
        entries = self.tokenweir.read_ledger()
        assert len({entry["exchange_id"] for entry in entries}) == len(entries)
        assert "Traceback" not in self.tokenweir.log.read_text(), self.tokenweir.log_tail()
        self.tokenweir.close()


def _upstream(model: str) -> str:
    return model if model in SAMPLE_MODELS else model.partition("/")[2]


def booked(entry: dict[str, Any]) -> tuple[int, int, int]:
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported"), entry
    return entry["prompt_tokens"], entry["completion_tokens"], entry["total_tokens"]
