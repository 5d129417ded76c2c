"""Checks the configuration. Invariant: a note names a value that is valid but unsafe or unused; invalid values are
rejected by the settings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from urllib.parse import urlsplit

from proxy.doctor.base_urls import likely_base_url
from proxy.doctor.finding import CheckedDeployment, Finding, error, ok, warning
from proxy.foundation.addresses import hosts_of
from proxy.foundation.names import counted
from proxy.keys.identities import issuer_keys
from proxy.metering.estimator.completion import may_hide
from proxy.runtime.machine.price_file import PriceFileError, price_book
from proxy.runtime.proxy.model_table import price_lookup
from proxy.runtime.proxy.tokenizers import Tokenizers
from proxy.settings import (
    ModelSettings,
    OnClientDisconnect,
    ProviderSettings,
    Settings,
    SettingsError,
    require_prices,
    route,
)
from proxy.settings.reading import located, read_text

# APIs with models that bill reasoning without streaming it, as of the end of 2026.
_HIDDEN_REASONING_HOSTS = frozenset(
    {"api.openai.com", "generativelanguage.googleapis.com", "api.x.ai", "openrouter.ai"}
)


# The tokens of Microsoft's shared endpoints name the tenant of each user.
_ENTRA_SHARED = frozenset({"common", "organizations", "consumers"})

_note = partial(warning, "configuration")


def settings_valid(case: CheckedDeployment) -> list[Finding]:
    """Confirm that the configuration is readable; notes on unsafe or unused settings."""
    settings = case.settings
    models = f"{counted(len(settings.providers), 'provider')}, {counted(len(settings.models), 'model')}"
    return [ok("configuration", f"is valid: {models}"), *_notes(settings)]


def _notes(settings: Settings) -> Iterator[Finding]:
    yield from _reachable(settings)
    yield from _identities(settings)
    if settings.allow_literal_secrets:
        yield _note(
            "allow_literal_secrets: the file may contain secrets",
            "write ${VAR}, and remove allow_literal_secrets",
        )
    for provider in settings.providers.values():
        if provider.base_url.startswith("http://") and not _is_loopback(urlsplit(provider.base_url).hostname or ""):
            yield _note(
                f"providers.{provider.name}: http://: its key and all prompts are sent unencrypted",
                "use https://, unless you control the whole network path",
            )
        if (likely := likely_base_url(provider)) is not None:
            yield _note(
                f"providers.{provider.name}.base_url: has no path; the usual one is {likely}",
                "correct it, or ask the address: `tokenweir doctor`",
            )
        if all(target.provider != provider.name for model in settings.models.values() for target in model.providers):
            yield _note(f"providers.{provider.name}: no model uses it", "name it under models, or remove it")


def _identities(settings: Settings) -> Iterator[Finding]:
    """Certificates that cannot be read, and notes on settings by which no token, or no model, is accepted."""
    for one in settings.identities.values():
        at = f"identities.{one.name}"
        try:
            issuer_keys(one)
        except SettingsError as wrong:
            yield error(
                "configuration", str(wrong), "correct the path or the file: the proxy does not start without it"
            )
        if urlsplit(one.issuer).path.strip("/").split("/")[0] in _ENTRA_SHARED:
            yield _note(f"{at}.issuer: no token has this `iss`", "write the id of your tenant in its place")
        for model in sorted(one.key.models or ()):
            if route(settings.models, model) is None:
                yield _note(f"{at}.key.models: {model} is not under models", "correct the name, or remove it")


def _reachable(settings: Settings) -> Iterator[Finding]:
    """Notes on addresses that other machines can reach."""
    listen, admin = settings.listen.host, settings.admin
    if not _is_loopback(listen):
        yield _note(
            f"listen.host {listen}: other machines can reach it, without TLS",
            "allow only a TLS-terminating edge proxy to reach it: see deploy/edge/",
        )
    metrics = settings.metrics
    metrics_hosts = {"listen.host": listen} if metrics.port is None else {"metrics.host": metrics.host}
    if settings.queue is not None:
        metrics_hosts["worker.host"] = settings.worker.host
    for name, host in metrics_hosts.items():
        if not _is_loopback(host):
            yield _note(
                f"/metrics at {name} {host} needs no authentication and shows the spend at each provider",
                "allow only the metrics scraper to reach it; the edge proxy should forward only `/v1/`",
            )
    if admin.is_on and not _is_loopback(admin.host):
        yield _note(
            f"admin.host {admin.host}: other machines can reach it; the secret, sent without TLS, gives full control",
            "use 127.0.0.1 and a tunnel (ssh -L, kubectl port-forward), or an edge proxy with TLS for operators only",
        )


def _is_loopback(host: str) -> bool:
    """True if only this machine can reach the addresses."""
    try:
        return all(one == "localhost" or ip_address(one).is_loopback for one in hosts_of(host))
    except ValueError:
        return False


def _refused(case: CheckedDeployment, check: str, wrong: SettingsError, advice: str) -> list[Finding]:
    """A finding for each fault of the configuration, with its line in the file; the last one has the advice."""
    told = wrong if case.file is None else located(wrong, case.file, read_text(case.file))
    *others, last = str(told).splitlines()
    return [*(error(check, one, "") for one in others), error(check, last, advice)]


def prices(case: CheckedDeployment) -> list[Finding]:
    """Check that every served model has a price."""
    try:
        require_prices(case.settings, price_lookup(price_book(case.settings.data_dir)))
    except PriceFileError as wrong:
        return [error("prices", str(wrong), "write it again: `tokenweir prices update`; or remove it")]
    except SettingsError as refusal:
        return _refused(case, "prices", refusal, "set the price: `tokenweir serve` does not start without it")
    open_ended = [model.name for model in case.settings.models.values() if model.is_pattern and model.price is None]
    named = len(case.settings.models) - len(open_ended)
    findings = [ok("prices", f"known for {counted(named, 'model')}")] if named else []
    if open_ended:
        findings.append(
            warning(
                "prices",
                f"{', '.join(open_ended)}: a matching model that has no price is served, free of charge, as `unpriced`",
                "name the models, or watch for `unpriced` entries and correct them with `tokenweir rerate`",
            )
        )
    return findings


def tokenizers(case: CheckedDeployment) -> list[Finding]:
    """Check that the configured tokenizers can be loaded."""
    models = case.settings.models.values()
    try:
        Tokenizers(models, case.settings.estimates)
    except SettingsError as refusal:
        advice = "`tokenweir serve` does not start without it: see docs/explanation/estimates.md"
        return _refused(case, "tokenizers", refusal, advice)
    return [ok("tokenizers", f"loaded for {counted(sum(model.tokenizer is not None for model in models), 'model')}")]


def hidden_reasoning(case: CheckedDeployment) -> list[Finding]:
    """Find models whose reasoning is billed but not streamed: after a client disconnects they can only be estimated."""
    models = [model for model in case.settings.models.values() if _hides(model, case.settings)]
    if not models:
        return [ok("hidden reasoning", "no model bills reasoning that is neither streamed nor drained")]
    names = ", ".join(model.name for model in models)
    return [
        warning(
            "hidden reasoning",
            f"{names}: reasoning is billed but not streamed; if a client disconnects, it can only be estimated",
            "set on_client_disconnect: drain for their providers",
        )
    ]


def _hides(model: ModelSettings, settings: Settings) -> bool:
    return any(_hides_at(target.upstream_model, settings.providers[target.provider]) for target in model.providers)


def _hides_at(upstream_model: str, provider: ProviderSettings) -> bool:
    """True if the model at this provider hides its reasoning. `upstream_model`: empty if the requested name is sent."""
    if provider.on_client_disconnect is OnClientDisconnect.DRAIN:
        return False
    named = upstream_model.rpartition("/")[2]
    return may_hide(named, reports=0.0) if named else urlsplit(provider.base_url).hostname in _HIDDEN_REASONING_HOSTS
