"""A YAML file and the environment → `Settings`, or an error that names the field.

Invariant: unknown fields, duplicate keys and references to unknown names are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from proxy.billing.record import Price
from proxy.settings.cloud_auth import check_auth
from proxy.settings.faults import Fault, SettingsError, gathered
from proxy.settings.fields import FieldPath, read_section
from proxy.settings.identities import IdentitySettings
from proxy.settings.kinds import flag
from proxy.settings.listeners import AdminSettings
from proxy.settings.models import ModelSettings, TargetSettings
from proxy.settings.outbound import ForwardProxy, TlsSettings, proxy_of_environment
from proxy.settings.price_refresh import PricesSettings
from proxy.settings.providers import ProviderSettings
from proxy.settings.sinks import SinkSettings
from proxy.settings.values import Settings

# Room for thousands of models; a longer file is not a configuration.
FILE_BYTES_MAX = 4 << 20

SinkKinds = Mapping[str, type[SinkSettings]]
"""the kinds of sinks → their settings"""

Lookup = Callable[[ProviderSettings, str], Price | None]
"""provider, upstream model → price in the built-in price book, or None"""


def load(file: Path, env: Mapping[str, str], *, sinks: SinkKinds | None = None) -> Settings:
    """The settings in `file`, with sinks of these kinds. Raises SettingsError, which names the file, also for an
    unreadable one."""
    return load_text(read_text(file), file, env, sinks=sinks)


def load_text(text: str, file: Path, env: Mapping[str, str], *, sinks: SinkKinds | None = None) -> Settings:
    """The settings in `text`, which was read from `file`. Raises SettingsError, as `load` does."""
    try:
        return parse(text, env=env, folder=file.parent, sinks=sinks)
    except SettingsError as wrong:
        raise located(wrong, file, text) from wrong.__cause__


def read_text(file: Path) -> str:
    """The text of a configuration file. Raises SettingsError."""
    try:
        with file.open("rb") as opened:
            written = opened.read(FILE_BYTES_MAX + 1)
        if len(written) > FILE_BYTES_MAX:
            raise SettingsError(f"{file}: is longer than {FILE_BYTES_MAX >> 20} MiB; is this the right file?")
        return written.decode("utf-8")
    except OSError as failure:
        raise SettingsError(f"{file}: {failure.strerror}") from failure
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: is not UTF-8 text") from None


def located(wrong: SettingsError, file: Path, text: str) -> SettingsError:
    """Add to each fault its line in the file: `tokenweir.yaml:12: listen.port: …`. `text`: the file's contents."""
    lines = _Lines(text)
    faults = tuple(fault._replace(line=fault.line or lines.of(fault.parts)) for fault in wrong.faults)
    told = (f"{file}:{fault.line}: {fault.text}" if fault.line else f"{file}: {fault.text}" for fault in faults)
    return SettingsError("\n".join(told), faults)


class _Lines:
    """Finds the lines of settings in a file."""

    def __init__(self, text: str) -> None:
        self._root = None
        with suppress(yaml.YAMLError, SettingsError, ValueError, RecursionError):
            self._root = _Loader(text).get_single_node()

    def of(self, parts: tuple[str | int, ...]) -> int | None:
        """The line of a field, or of the section that lacks it; None: the whole file lacks it."""
        node, line = self._root, None
        for part in parts:
            found = _below(node, part)
            if found is None:
                break
            key, node = found
            line = key.start_mark.line + 1
        return line


def _below(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """The node that has the place of a field or an element, and the node of its value; None: there is none."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


def parse(text: str, *, env: Mapping[str, str], folder: Path, sinks: SinkKinds | None = None) -> Settings:
    """The settings written in YAML `text`; relative paths are relative to `folder`. Raises SettingsError."""
    return settings_from(parsed_yaml(text), env=env, folder=folder, sinks=sinks)


def settings_from(raw: object, *, env: Mapping[str, str], folder: Path, sinks: SinkKinds | None = None) -> Settings:
    """The settings in a parsed document. Raises SettingsError."""
    at = FieldPath(env, folder, sinks=sinks or {})
    literal = raw.get("allow_literal_secrets") if isinstance(raw, dict) else None
    if literal is not None:
        at = replace(at, literal_secrets=flag().read(literal, at.under("allow_literal_secrets")))
    try:
        settings: Settings = read_section(Settings, raw, at, data_dir=folder / "data")
    except SettingsError as wrong:
        raise SettingsError.of_all([wrong, *_unknown_providers(raw, at)]) from wrong.__cause__
    checked: dict[str, Any] = {}

    def check_providers() -> None:
        checked["providers"] = _reached(settings.providers, raw, at)

    def check_prices() -> None:
        checked["prices"] = _refresh(settings.prices, raw, at)

    def check_admin() -> None:
        checked["admin"] = _admin(settings.admin, raw, at)

    def check_identities() -> None:
        checked["identities"] = _found_by(settings.identities, raw, at)

    def check_models() -> None:
        models = settings.models
        routed = gathered(partial(_routed, one, settings, at) for one in models.values())
        checked["models"] = dict(zip(models, routed, strict=True))

    gathered((
        partial(_check_sharing, settings, at), check_admin, check_identities, check_providers, check_prices,
        check_models,
    ))  # fmt: skip
    return replace(settings, **checked)


def _unknown_providers(raw: Any, at: FieldPath) -> list[SettingsError]:
    """The references to unknown providers in a document with other faults, whose models were not read."""
    providers, models = (raw.get(name) if isinstance(raw, dict) else None for name in ("providers", "models"))
    if not isinstance(providers, dict) or not isinstance(models, dict):
        return []
    wrongs = []
    for name, model in models.items():
        if not isinstance(model, dict):
            continue
        here = at.under("models").under(str(name))
        listed = model.get("providers")
        targets = [(model, here)]
        for number, target in enumerate(listed if isinstance(listed, list) else ()):
            fields_of = target if isinstance(target, dict) else {"provider": target}
            targets.append((fields_of, here.under("providers").numbered(number)))
        wrongs += [
            _unknown_provider(providers, place)
            for target, place in targets
            if isinstance(target.get("provider"), str) and target["provider"] not in providers
        ]
    return wrongs


def _unknown_provider(providers: Iterable[str], at: FieldPath) -> SettingsError:
    return at.under("provider").wrong(f"unknown provider; must be one of {', '.join(map(str, providers))}")


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
            "is missing: proxies that share a ledger must hash keys alike; generate one with `tokenweir keys pepper`, "
            "or, after a move from SQLite, print the earlier one: `tokenweir keys pepper --config FILE`, "
            "with the earlier configuration"
        )


def _admin(admin: AdminSettings, raw: Any, at: FieldPath) -> AdminSettings:
    """The settings with the HTTP proxy of the environment, unless the file sets one. Raises SettingsError."""
    here, oidc = at.under("admin"), admin.oidc
    _check_operators(admin, here)
    if oidc is None:
        return admin
    if admin.public_url is None:
        raise here.under("public_url").wrong("is missing: `oidc` needs it, because a request's Host can be forged")
    place = here.under("oidc")
    _check_tls(oidc.tls, oidc.issuer, "issuer", place)
    if raw["admin"]["oidc"].get("proxy") is None:
        oidc = replace(oidc, proxy=_usual_proxy(oidc.issuer, place))
    return replace(admin, oidc=oidc)


def _found_by(identities: Mapping[str, IdentitySettings], raw: Any, at: FieldPath) -> dict[str, IdentitySettings]:
    """The identities, each with the HTTP proxy of the environment unless the file sets one. Raises SettingsError."""

    def read(name: str, one: IdentitySettings) -> IdentitySettings:
        here = at.under("identities").under(name)
        address, field = (one.issuer, "issuer") if one.jwks is None else (one.jwks, "jwks")
        _check_tls(one.tls, address, field, here)
        if raw["identities"][name].get("proxy") is None:
            one = replace(one, proxy=_usual_proxy(address, here))
        return one

    return dict(zip(identities, gathered(partial(read, *one) for one in identities.items()), strict=True))


def _check_operators(admin: AdminSettings, at: FieldPath) -> None:
    """Refuse two operators with one secret: the audit log could not distinguish them."""
    secrets = set() if admin.secret is None else {admin.secret.reveal()}
    for name, one in admin.operators.items():
        if one.secret.reveal() in secrets:
            raise at.under("operators").under(name).under("secret").wrong("is another operator's, too")
        secrets.add(one.secret.reveal())


def _reached(providers: Mapping[str, ProviderSettings], raw: Any, at: FieldPath) -> dict[str, ProviderSettings]:
    """The providers, each with the HTTP proxy of the environment unless the file sets one. Raises SettingsError."""

    def read(name: str, provider: ProviderSettings) -> ProviderSettings:
        here = at.under("providers").under(name)
        _check_tls(provider.tls, provider.base_url, "base_url", here)
        _check_credentials(provider, here)
        if raw["providers"][name].get("proxy") is None:
            provider = replace(provider, proxy=_usual_proxy(provider.base_url, here))
        return provider

    return dict(zip(providers, gathered(partial(read, name, one) for name, one in providers.items()), strict=True))


def _check_tls(tls: TlsSettings, url: str, setting: str, at: FieldPath) -> None:
    """`setting`: the name of the URL's."""
    if tls != TlsSettings() and not url.startswith("https://"):
        raise at.under("tls").wrong(f"needs a `{setting}` of https://")
    if tls.key_file is not None and tls.cert_file is None:
        raise at.under("tls").under("cert_file").wrong("is missing: `key_file` is its private key")


def _usual_proxy(url: str, at: FieldPath) -> ForwardProxy | None:
    """The HTTP proxy of the environment."""
    try:
        return proxy_of_environment(url, at.env)
    except SettingsError as wrong:
        raise at.under("proxy").wrong(str(wrong)) from None


def _refresh(prices: PricesSettings, raw: Any, at: FieldPath) -> PricesSettings:
    """The settings with the HTTP proxy of the environment, unless the file sets one. Raises SettingsError."""
    refresh, here = prices.refresh, at.under("prices").under("refresh")
    if refresh is None:
        return prices
    _check_tls(refresh.tls, refresh.source, "from", here)
    if raw["prices"]["refresh"].get("proxy") is None:
        refresh = replace(refresh, proxy=_usual_proxy(refresh.source, here))
    return replace(prices, refresh=refresh)


def _check_credentials(provider: ProviderSettings, at: FieldPath) -> None:
    if provider.auth is not None:
        has_keys = provider.api_key is not None or bool(provider.credentials)
        host = urlsplit(provider.base_url).hostname or ""
        check_auth(provider.auth, host, has_keys=has_keys, at=at.under("auth"))
    if provider.api_key is not None and provider.credentials:
        raise at.under("credentials").wrong("cannot be combined with `api_key`: give one of the two")
    if provider.byok and (provider.auth is not None or provider.tls.cert_file is not None):
        raise at.under("byok").wrong(
            "cannot be combined with `auth` or `tls.cert_file`: these are your own credentials"
        )
    names = [credential.name for credential in provider.credentials]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise at.under("credentials").numbered(number).under("name").wrong("duplicate: it is listed before")


def require_prices(settings: Settings, lookup: Lookup) -> None:
    """Refuse named models without a price. Raises SettingsError."""
    at = FieldPath({}, Path(), parts=("models",))

    def require(model: ModelSettings) -> None:
        if model.is_pattern or model.price is not None:
            return
        first = model.providers[0]
        if lookup(settings.providers[first.provider], first.upstream_model) is None:
            why = (
                f"is missing, and the built-in price book has no price for {first.upstream_model!r} at "
                f"{first.provider!r}; write price: {{input: …, output: …}}, in USD per million tokens"
            )
            raise at.under(model.name).under("price").wrong(why)

    gathered(partial(require, model) for model in settings.models.values())


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
        raise _unknown_provider(settings.providers, at)
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
                line = key.start_mark.line + 1
                duplicate = Fault(f"duplicate field {key.value!r}", line=line)
                raise SettingsError(f"line {line}: {duplicate.text}", (duplicate,))
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        return node


def parsed_yaml(text: str) -> object:
    """The document. Raises SettingsError, with the number of a line and never its text, which may have a secret."""
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except SettingsError:
        raise
    except yaml.MarkedYAMLError as wrong:
        fault = Fault(f"invalid YAML: {wrong.problem}")
        if wrong.problem_mark is None:
            raise SettingsError(fault.text) from None
        line = wrong.problem_mark.line + 1
        raise SettingsError(f"line {line}: {fault.text}", (fault._replace(line=line),)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as wrong:
        raise SettingsError(f"invalid YAML: {type(wrong).__name__}") from None
