"""Settings without a file: providers from the environment variables that their own tools use.

Invariants: each provider found is reported; the values pass the same checks as those of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proxy.settings.faults import SettingsError
from proxy.settings.providers import OnClientDisconnect
from proxy.settings.reading import settings_from
from proxy.settings.values import Settings
from proxy.settings.variables import variable


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """A provider that the variable `<PREFIX>_API_KEY` enables."""

    name: str
    prefix: str
    base_url: str | None
    """default of `<PREFIX>_BASE_URL`; None: that variable is required"""
    on_client_disconnect: OnClientDisconnect = OnClientDisconnect.CANCEL

    @property
    def key_variable(self) -> str:
        """The environment variable of the provider's key."""
        return f"{self.prefix}_API_KEY"

    @property
    def url_variable(self) -> str:
        """The environment variable of the provider's base URL."""
        return f"{self.prefix}_BASE_URL"

    def has_key(self, env: Mapping[str, str]) -> bool:
        """True if the environment, or a file that it names, has the key. Raises SettingsError."""
        return bool(variable(env, self.key_variable))

    def has_url(self, env: Mapping[str, str]) -> bool:
        """True if the base URL is known. Raises SettingsError."""
        return bool(self.base_url or variable(env, self.url_variable))

    def url_written(self, env: Mapping[str, str]) -> str:
        """The base URL as a configuration file has it. Raises SettingsError."""
        return f"${{{self.url_variable}}}" if variable(env, self.url_variable) else self.base_url or ""


KNOWN: tuple[KnownProvider, ...] = (
    KnownProvider("openai", "OPENAI", "https://api.openai.com/v1"),
    KnownProvider("deepseek", "DEEPSEEK", "https://api.deepseek.com/v1"),
    KnownProvider("groq", "GROQ", "https://api.groq.com/openai/v1"),
    KnownProvider("mistral", "MISTRAL", "https://api.mistral.ai/v1"),
    KnownProvider("openrouter", "OPENROUTER", "https://openrouter.ai/api/v1"),
    KnownProvider("xai", "XAI", "https://api.x.ai/v1"),
    KnownProvider("together", "TOGETHER", "https://api.together.xyz/v1"),
    KnownProvider("fireworks", "FIREWORKS", "https://api.fireworks.ai/inference/v1"),
    KnownProvider("cerebras", "CEREBRAS", "https://api.cerebras.ai/v1"),
    KnownProvider("tera", "TERA", "https://api.tera.gw/v1"),
    KnownProvider("smallest", "SMALLEST", "https://api.smallest.ai/waves/v1"),
    # It bills generated tokens even if the client disconnects, so the stream is drained for the reported usage.
    KnownProvider("tensorloop", "TENSORLOOP", None, OnClientDisconnect.DRAIN),
)


def from_environment(env: Mapping[str, str], *, folder: Path = Path()) -> tuple[Settings, list[str]]:
    """Settings from variables alone, and a line of text per provider. Raises SettingsError if there is no provider.

    A single provider serves every model name; of several, each serves `provider/model`.
    """
    with_key = [known for known in KNOWN if known.has_key(env)]
    usable = [known for known in with_key if known.has_url(env)]
    if not usable:
        lacking = [f"; {known.key_variable} is set but needs {known.url_variable} too" for known in with_key]
        variables = ", ".join(known.key_variable for known in KNOWN)
        raise SettingsError(
            f"no provider is configured: write tokenweir.yaml, use --config FILE, or set one of {variables}"
            f"{''.join(lacking)}"
        )
    models = {_pattern(known, usable): {"provider": known.name} for known in usable}
    raw = {"providers": {known.name: _provider(known, env) for known in usable}, "models": models}
    settings = settings_from(raw, env=env, folder=folder)
    return settings, [_summary(known, settings, used=known in usable, of=len(usable)) for known in with_key]


def _pattern(known: KnownProvider, usable: list[KnownProvider]) -> str:
    return "*" if len(usable) == 1 else f"{known.name}/*"


def _provider(known: KnownProvider, env: Mapping[str, str]) -> dict[str, str]:
    return {
        "base_url": known.url_written(env),
        "api_key": f"${{{known.key_variable}}}",
        "on_client_disconnect": known.on_client_disconnect.value,
    }


def _summary(known: KnownProvider, settings: Settings, *, used: bool, of: int) -> str:
    if not used:
        return f"{known.key_variable} is ignored: set {known.url_variable} to the base URL of {known.name}"
    names = "any model name" if of == 1 else f"{known.name}/<model>"
    base_url = settings.providers[known.name].base_url
    return f"{known.name}: {base_url}, key from {known.key_variable}, serves {names}"
