"""A YAML file and the environment → `Settings`, or an error that names the field.

Invariant: unknown fields, duplicate keys and references to unknown names are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from proxy.billing.record import Price
from proxy.settings.cloud_auth import check_auth
from proxy.settings.kinds import FieldPath, SettingsError, flag, read_section
from proxy.settings.models import ModelSettings, TargetSettings
from proxy.settings.outbound import TlsSettings, proxy_of_environment
from proxy.settings.sinks import SinkSettings
from proxy.settings.values import ProviderSettings, Settings

# Room for thousands of models; a longer file is not a configuration.
FILE_BYTES_MAX = 4 << 20

SinkKinds = Mapping[str, type[SinkSettings]]
"""the kinds of sinks → their settings"""

Lookup = Callable[[ProviderSettings, str], Price | None]
"""provider, upstream model → price in the built-in price book, or None"""


def load(file: Path, env: Mapping[str, str], *, sinks: SinkKinds | None = None) -> Settings:
    """The settings in `file`, with sinks of these kinds. Raises SettingsError, which names the file, also for an
    unreadable one."""
    try:
        with file.open("rb") as opened:
            written = opened.read(FILE_BYTES_MAX + 1)
        if len(written) > FILE_BYTES_MAX:
            raise SettingsError(f"is longer than {FILE_BYTES_MAX >> 20} MiB; is this the right file?")  # noqa: TRY301
        return parse(written.decode("utf-8"), env=env, folder=file.parent, sinks=sinks)
    except OSError as failure:
        raise SettingsError(f"{file}: {failure.strerror}") from failure
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: is not UTF-8 text") from None
    except SettingsError as wrong:
        raise SettingsError(f"{file}: {wrong}") from wrong.__cause__


def parse(text: str, *, env: Mapping[str, str], folder: Path, sinks: SinkKinds | None = None) -> Settings:
    """The settings written in YAML `text`; relative paths are relative to `folder`. Raises SettingsError."""
    return settings_from(_yaml(text), env=env, folder=folder, sinks=sinks)


def settings_from(raw: object, *, env: Mapping[str, str], folder: Path, sinks: SinkKinds | None = None) -> Settings:
    """The settings in a parsed document. Raises SettingsError."""
    at = FieldPath(env, folder, sinks=sinks or {})
    literal = raw.get("allow_literal_secrets") if isinstance(raw, dict) else None
    if literal is not None:
        at = replace(at, literal_secrets=flag().read(literal, at.under("allow_literal_secrets")))
    settings: Settings = read_section(Settings, raw, at, data_dir=folder / "data")
    _check_sharing(settings, at)
    settings = replace(settings, providers=_reached(settings.providers, raw, at))
    models = {name: _routed(model, settings, at) for name, model in settings.models.items()}
    return replace(settings, models=models)


def _check_sharing(settings: Settings, at: FieldPath) -> None:
    """Check settings that depend on each other. Raises SettingsError."""
    if settings.queue is not None and settings.ledger is None:
        raise at.under("ledger").wrong(
            "must be `postgresql://…` when `queue` is set: workers cannot share a SQLite file"
        )
    if (settings.alerts.url is None) != (settings.alerts.secret is None):
        raise at.under("alerts").wrong("set both `url` and `secret`, or neither: webhooks are always signed")
    if settings.ledger is not None and settings.key_pepper is None:
        raise at.under("key_pepper").wrong(
            "is missing: proxies that share a ledger must hash keys alike; generate one with `tokenweir keys pepper`"
        )


def _reached(providers: Mapping[str, ProviderSettings], raw: Any, at: FieldPath) -> dict[str, ProviderSettings]:
    """The providers, each with the HTTP proxy of the environment unless the file sets one. Raises SettingsError."""
    found = {}
    for name, provider in providers.items():
        here, tls = at.under("providers").under(name), provider.tls
        if tls != TlsSettings() and not provider.base_url.startswith("https://"):
            raise here.under("tls").wrong("needs a `base_url` of https://")
        if tls.key_file is not None and tls.cert_file is None:
            raise here.under("tls").under("cert_file").wrong("is missing: `key_file` is its private key")
        _check_credentials(provider, here)
        if raw["providers"][name].get("proxy") is None:
            try:
                provider = replace(provider, proxy=proxy_of_environment(provider.base_url, at.env))
            except SettingsError as wrong:
                raise here.under("proxy").wrong(str(wrong)) from None
        found[name] = provider
    return found


def _check_credentials(provider: ProviderSettings, at: FieldPath) -> None:
    if provider.auth is not None:
        has_keys = provider.api_key is not None or bool(provider.credentials)
        host = urlsplit(provider.base_url).hostname or ""
        check_auth(provider.auth, host, has_keys=has_keys, at=at.under("auth"))
    if provider.api_key is not None and provider.credentials:
        raise at.under("credentials").wrong("cannot be combined with `api_key`: give one of the two")
    names = [credential.name for credential in provider.credentials]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise at.under("credentials").numbered(number).under("name").wrong("duplicate: it is listed before")


def require_prices(settings: Settings, lookup: Lookup) -> None:
    """Refuse named models without a price. Raises SettingsError about the first one."""
    for model in settings.models.values():
        if model.is_pattern or model.price is not None:
            continue
        first = model.providers[0]
        if lookup(settings.providers[first.provider], first.upstream_model) is None:
            raise SettingsError(
                f"models.{model.name}.price: is missing, and the built-in price book has no price for "
                f"{first.upstream_model!r} at {first.provider!r}; write price: {{input: …, output: …}}, "
                f"in USD per million tokens"
            )


def route(models: Mapping[str, ModelSettings], name: str) -> tuple[ModelSettings, str] | None:
    """The model setting that serves the requested `name`, and the name to send upstream if that setting is a pattern,
    else "". None: no setting serves the name.

    An exact name is preferred to `prefix/*`, and `prefix/*` to `*`.
    """
    exact = models.get(name)
    if exact is not None and not exact.is_pattern:
        return exact, ""
    prefix, _, rest = name.partition("/")
    prefixed = models.get(f"{prefix}/*")
    if prefixed is not None and rest:
        return prefixed, rest
    catch_all = models.get("*")
    return None if catch_all is None or not name else (catch_all, name)


def _routed(model: ModelSettings, settings: Settings, at: FieldPath) -> ModelSettings:
    """The model with all its targets. Raises SettingsError if a target does not exist."""
    here = at.under("models").under(model.name)
    if model.alias_of:
        return _alias(model, settings, at)
    if model.provider and model.providers:
        raise here.under("providers").wrong("cannot be combined with `provider`: give one of the two")
    if model.providers:
        _refuse_beside(
            model, ("upstream_model", "cost"), "cannot be combined with `providers`: set it in each element", here
        )
        places = [here.under("providers").numbered(number) for number in range(len(model.providers))]
    elif not model.provider:
        raise here.under("provider").wrong("is missing: give `provider`, `providers` or `alias_of`")
    else:
        places = [here]
    one = TargetSettings(provider=model.provider, upstream_model=model.upstream_model, cost=model.cost)
    targets = [
        _target(target, model, settings, place) for target, place in zip(model.providers or (one,), places, strict=True)
    ]
    _check_choice(targets, here.under("providers"))
    return replace(model, providers=tuple(targets))


def _target(target: TargetSettings, model: ModelSettings, settings: Settings, at: FieldPath) -> TargetSettings:
    """`target` with its upstream name. Raises SettingsError if its provider does not exist."""
    if target.provider not in settings.providers:
        known = ", ".join(settings.providers)
        raise at.under("provider").wrong(f"unknown provider; must be one of {known}")
    if model.is_pattern and target.upstream_model:
        raise at.under("upstream_model").wrong("cannot be set for a name with *: the requested name is sent upstream")
    return replace(target, upstream_model=target.upstream_model or ("" if model.is_pattern else model.name))


def _check_choice(targets: Sequence[TargetSettings], at: FieldPath) -> None:
    """Check that no target is listed twice, and that all targets or none have a weight."""
    seen = set()
    for number, target in enumerate(targets):
        place = at.numbered(number)
        if (target.provider, target.upstream_model) in seen:
            raise place.under("provider").wrong("duplicate: this provider and model are listed before")
        seen.add((target.provider, target.upstream_model))
        if (target.weight is None) != (targets[0].weight is None):
            raise place.under("weight").wrong("must be set for all providers of the model, or for none")


def _alias(model: ModelSettings, settings: Settings, at: FieldPath) -> ModelSettings:
    """The target of the alias, under the alias's name."""
    here = at.under("models").under(model.name)
    _refuse_beside(
        model, tuple(field.name for field in fields(model) if field.name not in ("name", "alias_of")),
        "cannot be combined with `alias_of`: an alias takes every field from the other model", here,
    )  # fmt: skip
    named = settings.models.get(model.alias_of)
    if named is None or named.alias_of or named.is_pattern or model.is_pattern:
        raise here.under("alias_of").wrong(
            "must name a model of this file that is not an alias; neither name may contain *"
        )
    return replace(_routed(named, settings, at), name=model.name, alias_of=model.alias_of)


def _refuse_beside(model: ModelSettings, names: Sequence[str], why: str, at: FieldPath) -> None:
    for name in names:
        if getattr(model, name) not in ("", (), None):
            raise at.under(name).wrong(why)


class _Loader(yaml.SafeLoader):
    """YAML without duplicate keys."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise SettingsError(f"line {key.start_mark.line + 1}: duplicate field {key.value!r}")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        return node


def _yaml(text: str) -> object:
    """The document. Errors give the number of a line and never quote it: it may contain a secret."""
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except SettingsError:
        raise
    except yaml.MarkedYAMLError as wrong:
        line = f"line {wrong.problem_mark.line + 1}: " if wrong.problem_mark else ""
        raise SettingsError(f"{line}invalid YAML: {wrong.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as wrong:
        raise SettingsError(f"invalid YAML: {type(wrong).__name__}") from None
