"""The proxy, and a scripted provider that speaks every language of these SDKs behind it.

Invariant: model `openai/NAME` goes to the provider as `NAME`, in OpenAI's language; likewise for the other languages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from proxy.demo.script import Script, Shape
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

# Where each language's paths begin at a provider.
BASES = {
    "openai": "/v1", "anthropic": "/v1", "mistral": "/v1", "cohere": "/v2", "ollama": "/api", "gemini": "/v1beta",
    "vertex": "/v1/projects/ours/locations/here",
}  # fmt: skip
# Where clients may use credentials of their own.
BYOK = ("openai", "anthropic")
SOON_S = 20.0
# Less than any request costs.
NEXT_TO_NOTHING_USD = "0.000000001"


class Stand:
    """What the programs are run against."""

    def __init__(self, folder: Path) -> None:
        self.provider = ScriptedProvider()
        providers = {
            name: provider_section(
                f"{self.provider.url}{base}", dialects=_dialects(name), on_client_disconnect="cancel", byok=name in BYOK
            )
            for name, base in BASES.items()
        }
        models = {f"{name}/*": {"provider": name, "price": PRICE, "cost": COST} for name in BASES}
        models |= {f"{name}-model": {"provider": name, "price": PRICE, "cost": COST} for name in BASES}
        self.tokenweir = Tokenweir(folder, providers=providers, models=models)
        try:
            self.tokenweir.start()
            self.keys = {
                "KEY": self.tokenweir.key("programs"),
                "KEY_SPENT": self.tokenweir.key("spent", "--budget", NEXT_TO_NOTHING_USD),
                "KEY_UNKNOWN": "sk-of-somebody-else",
                "KEY_BYOK": self.tokenweir.key("their own credentials", "--byok", "free"),
            }
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return self.tokenweir.url

    def environment(self, name: str) -> dict[str, str]:
        """What a program is told; one of the keys is its own, and may ask once a minute."""
        limited = self.tokenweir.key(f"limited-{name}", "--rpm", "1")
        return {**self.keys, "KEY_LIMITED": limited, "TOKENWEIR_URL": self.url, "NO_PROXY": "127.0.0.1"}

    def plan(self, model: str, plan: Script | Shape) -> str:
        """Answer requests for `model` by `plan`; gives `model` back."""
        self.provider.script(model.partition("/")[2], plan)
        return model

    def seen(self, model: str) -> list[dict[str, Any]]:
        """What the provider saw of `model`, once all of it has ended."""
        return self.provider.ended(1, model.partition("/")[2], timeout_s=SOON_S)

    def entries(self, holds: Callable[[dict[str, Any]], bool], count: int = 1) -> list[dict[str, Any]]:
        """The ledger's entries of which `holds` is true, once there are at least `count`."""
        entries = self.tokenweir.until(lambda all_: sum(map(holds, all_)) >= count, timeout_s=SOON_S)
        return list(filter(holds, entries))

    def entry(self, model: str) -> dict[str, Any]:
        (one,) = self.entries(lambda entry: entry["model"] == model)
        return one

    def close(self) -> None:
        """End both, whatever they do."""
        self.tokenweir.close()
        self.provider.close()


def _dialects(name: str) -> list[str]:
    return ["openai", "mistral"] if name == "mistral" else [name]
