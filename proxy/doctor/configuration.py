"""What the configuration says by itself. Law: what it refuses is not repeated here, only what it lets pass."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from proxy.billing.prices import PriceBook
from proxy.doctor.finding import Case, Finding, fails, note, ok
from proxy.metering.estimator.completion import may_hide
from proxy.runtime.proxy.model_table import price_lookup
from proxy.runtime.proxy.tokenizers import Tokenizers
from proxy.settings import (
    ModelSettings,
    OnClientLeave,
    ProviderSettings,
    Settings,
    SettingsError,
    require_prices,
)

# Models that bill reasoning which they do not stream, as of the end of 2026, and the APIs that have such models.
_HIDERS = frozenset({"api.openai.com", "generativelanguage.googleapis.com", "api.x.ai", "openrouter.ai"})


def wording(case: Case) -> list[Finding]:
    """It can be read; what in it is unwise."""
    settings = case.settings
    models = f"{len(settings.providers)} providers, {len(settings.models)} models"
    return [ok("configuration", f"is read: {models}"), *_unwise(settings)]


def _unwise(settings: Settings) -> Iterator[Finding]:
    yield from _reachable(settings)
    if settings.allow_literal_secrets:
        yield note("configuration", "secrets may stand in the file", "write ${VAR}, and drop allow_literal_secrets")
    for provider in settings.providers.values():
        if provider.base_url.startswith("http://") and not _is_loopback(urlsplit(provider.base_url).hostname or ""):
            yield note(
                "configuration",
                f"providers.{provider.name}: http://: its key and all prompts go in clear",
                "use https://, unless the network between is yours alone",
            )
        if all(target.provider != provider.name for model in settings.models.values() for target in model.providers):
            yield note(
                "configuration", f"providers.{provider.name}: no model leads to it", "name it under models, or drop it"
            )


def _reachable(settings: Settings) -> Iterator[Finding]:
    """What other machines reach, and who should not."""
    listen, admin = settings.listen.host, settings.admin
    if not _is_loopback(listen):
        yield note(
            "configuration",
            f"listen.host {listen}: other machines reach it, and it speaks HTTP without TLS",
            "let nobody but the edge with TLS reach it: see deploy/edge/",
        )
    measured = {"listen.host": listen} | ({} if settings.queue is None else {"worker.host": settings.worker.host})
    for name, host in measured.items():
        if not _is_loopback(host):
            yield note(
                "configuration",
                f"/metrics is answered at {name} {host} to whoever reaches it, with what is spent at which provider",
                "let only what scrapes reach it past the edge, which passes on `/v1/` alone",
            )
    if admin.secret is not None and not _is_loopback(admin.host):
        yield note(
            "configuration",
            f"admin.host {admin.host}: whoever reaches it needs only the secret, sent without TLS, to change all keys",
            "127.0.0.1 and a tunnel (ssh -L, kubectl port-forward), or an edge with TLS that lets operators in only",
        )


def _is_loopback(host: str) -> bool:
    """True if only this machine reaches it."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def prices(case: Case) -> list[Finding]:
    """Whether everything that is served has a price."""
    try:
        require_prices(case.settings, price_lookup(PriceBook()))
    except SettingsError as refusal:
        return [fails("prices", str(refusal), "`tokenweir serve` refuses to start like this: write the price")]
    open_ended = [model.name for model in case.settings.models.values() if model.is_pattern and model.price is None]
    named = len(case.settings.models) - len(open_ended)
    found = [ok("prices", f"known for {named} models")] if named else []
    if open_ended:
        found.append(
            note(
                "prices",
                f"behind {', '.join(open_ended)} a model without a price is served, and its charge is null",
                "name the models that are sold, or watch for `unpriced` entries and `tokenweir rerate` them",
            )
        )
    return found


def tokenizers(case: Case) -> list[Finding]:
    """Whether those that are named can be read."""
    models = case.settings.models.values()
    try:
        Tokenizers(models)
    except SettingsError as refusal:
        return [fails("tokenizers", str(refusal), "`tokenweir serve` cannot start: see docs/explanation/estimates.md")]
    return [ok("tokenizers", f"are read: of {sum(model.tokenizer is not None for model in models)} models")]


def hidden_reasoning(case: Case) -> list[Finding]:
    """Which models are underestimated when a client leaves: their reasoning is billed and never seen."""
    found = [model for model in case.settings.models.values() if _hides(model, case.settings)]
    if not found:
        return [ok("hidden reasoning", "no model is known to bill reasoning that it does not stream, or it is drained")]
    names = ", ".join(model.name for model in found)
    return [
        note(
            "hidden reasoning",
            f"{names}: reasoning is billed and not streamed; if a client leaves, it can only be estimated",
            "set on_client_leave: drain for their provider",
        )
    ]


def _hides(model: ModelSettings, settings: Settings) -> bool:
    return any(_hides_at(target.upstream_model, settings.providers[target.provider]) for target in model.providers)


def _hides_at(upstream_model: str, provider: ProviderSettings) -> bool:
    """`upstream_model`: empty where names are passed on."""
    if provider.on_client_leave is OnClientLeave.DRAIN:
        return False
    named = upstream_model.rpartition("/")[2]
    return may_hide(named, told=0.0) if named else urlsplit(provider.base_url).hostname in _HIDERS
