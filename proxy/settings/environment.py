"""Settings without a file: providers from the variables that their own tools use.

Law: only what is set is taken, and each thing taken is said. What is taken goes through the same checks as a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proxy.settings.kinds import SettingsError
from proxy.settings.reading import settings_from
from proxy.settings.values import OnClientDisconnect, Settings


@dataclass(frozen=True, slots=True)
class Known:
    """A provider that its variable `<PREFIX>_API_KEY` names."""

    name: str
    prefix: str
    base_url: str | None
    """where it is, unless `<PREFIX>_BASE_URL` says so; None: that variable must say so"""
    on_client_disconnect: OnClientDisconnect = OnClientDisconnect.CANCEL

    @property
    def key_variable(self) -> str:
        """The variable its key is in."""
        return f"{self.prefix}_API_KEY"

    @property
    def url_variable(self) -> str:
        """The variable its address can be in."""
        return f"{self.prefix}_BASE_URL"


KNOWN: tuple[Known, ...] = (
    Known("openai", "OPENAI", "https://api.openai.com/v1"),
    Known("deepseek", "DEEPSEEK", "https://api.deepseek.com/v1"),
    Known("groq", "GROQ", "https://api.groq.com/openai/v1"),
    Known("mistral", "MISTRAL", "https://api.mistral.ai/v1"),
    Known("openrouter", "OPENROUTER", "https://openrouter.ai/api/v1"),
    Known("xai", "XAI", "https://api.x.ai/v1"),
    Known("together", "TOGETHER", "https://api.together.xyz/v1"),
    Known("fireworks", "FIREWORKS", "https://api.fireworks.ai/inference/v1"),
    Known("cerebras", "CEREBRAS", "https://api.cerebras.ai/v1"),
    Known("tera", "TERA", "https://api.tera.gw/v1"),
    Known("smallest", "SMALLEST", "https://api.smallest.ai/waves/v1"),
    # Its caller pays for what was generated, not for what was read; so the reported usage is waited for.
    Known("tensorloop", "TENSORLOOP", None, OnClientDisconnect.DRAIN),
)


def from_environment(env: Mapping[str, str], *, folder: Path = Path()) -> tuple[Settings, list[str]]:
    """Settings from variables alone, and a sentence for each thing taken. Raises SettingsError if there is nothing.

    One provider answers to every model name; of several, each answers to `provider/model`.
    """
    found = [known for known in KNOWN if env.get(known.key_variable)]
    located = [known for known in found if known.base_url or env.get(known.url_variable)]
    if not located:
        unlocated = [f"; {known.key_variable} needs {known.url_variable} too" for known in found]
        looked_at = ", ".join(known.key_variable for known in KNOWN)
        raise SettingsError(f"no provider: give --config FILE, or set one of {looked_at}{''.join(unlocated)}")
    models = {_pattern(known, located): {"provider": known.name} for known in located}
    raw = {"providers": {known.name: _provider(known, env) for known in located}, "models": models}
    settings = settings_from(raw, env=env, folder=folder)
    return settings, [_taken(known, settings, found=known in located, of=len(located)) for known in found]


def _pattern(known: Known, located: list[Known]) -> str:
    return "*" if len(located) == 1 else f"{known.name}/*"


def _provider(known: Known, env: Mapping[str, str]) -> dict[str, str]:
    elsewhere = f"${{{known.url_variable}}}" if env.get(known.url_variable) else None
    return {
        "base_url": elsewhere or known.base_url or "",
        "api_key": f"${{{known.key_variable}}}",
        "on_client_disconnect": known.on_client_disconnect.value,
    }


def _taken(known: Known, settings: Settings, *, found: bool, of: int) -> str:
    if not found:
        return f"{known.key_variable} is set and not used: {known.url_variable} does not say where {known.name} is"
    names = "any model name" if of == 1 else f"{known.name}/<model>"
    base_url = settings.providers[known.name].base_url
    return f"{known.name}: {base_url}, key from {known.key_variable}, answers to {names}"
