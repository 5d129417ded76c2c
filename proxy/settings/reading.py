"""A YAML file and the environment → `Settings`, or a refusal that names the field.

Law: what is started with is what was written: unknown fields, doubled keys and names that lead nowhere are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from proxy.billing.record import Price
from proxy.settings.kinds import FieldPath, SettingsError, flag, read_section
from proxy.settings.models import ModelSettings, TargetSettings
from proxy.settings.sinks import SinkSettings
from proxy.settings.values import ProviderSettings, Settings

# Thousands of models fit in; a longer file is not a configuration.
FILE_BYTES_MAX = 4 << 20

SinkKinds = Mapping[str, type[SinkSettings]]
"""the kinds of sinks → their settings"""

Lookup = Callable[[ProviderSettings, str], Price | None]
"""provider, upstream model → list price of the built-in book, if it has one"""


def load(file: Path, env: Mapping[str, str], *, sinks: SinkKinds | None = None) -> Settings:
    """The settings in `file`, with sinks of these kinds. Raises SettingsError, also if it cannot be read."""
    try:
        with file.open("rb") as opened:
            written = opened.read(FILE_BYTES_MAX + 1)
        if len(written) > FILE_BYTES_MAX:
            raise SettingsError(f"{file}: longer than {FILE_BYTES_MAX} bytes")
        return parse(written.decode("utf-8"), env=env, folder=file.parent, sinks=sinks)
    except OSError as failure:
        raise SettingsError(f"{file}: {failure.strerror}") from failure
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: is not UTF-8 text") from None


def parse(text: str, *, env: Mapping[str, str], folder: Path, sinks: SinkKinds | None = None) -> Settings:
    """The settings written in YAML `text`; relative paths start at `folder`. Raises SettingsError."""
    return settings_from(_yaml(text), env=env, folder=folder, sinks=sinks)


def settings_from(raw: object, *, env: Mapping[str, str], folder: Path, sinks: SinkKinds | None = None) -> Settings:
    """The settings in a parsed document. Raises SettingsError."""
    at = FieldPath(env, folder, sinks=sinks or {})
    literal = raw.get("allow_literal_secrets") if isinstance(raw, dict) else None
    if literal is not None:
        at = replace(at, literal_secrets=flag().read(literal, at.under("allow_literal_secrets")))
    settings: Settings = read_section(Settings, raw, at, data_dir=folder / "data")
    _check_sharing(settings, at)
    models = {name: _routed(model, settings, at) for name, model in settings.models.items()}
    return replace(settings, models=models)


def _check_sharing(settings: Settings, at: FieldPath) -> None:
    """What several machines share must be reachable by, and the same on, all of them. Raises SettingsError."""
    if settings.queue is not None and settings.ledger is None:
        raise at.under("ledger").wrong("workers behind a queue cannot reach a SQLite file: must be `postgresql://…`")
    if (settings.alerts.url is None) != (settings.alerts.secret is None):
        raise at.under("alerts").wrong("needs both, `url` and `secret`: no webhook goes out unsigned")
    if settings.ledger is not None and settings.key_pepper is None:
        raise at.under("key_pepper").wrong(
            "is missing: proxies that share a ledger must hash keys alike; `tokenweir keys pepper` prints a new one"
        )


def require_prices(settings: Settings, lookup: Lookup) -> None:
    """Refuse named models that would be served for nothing. Raises SettingsError, naming the first one."""
    for model in settings.models.values():
        if model.is_pattern or model.price is not None:
            continue
        first = model.providers[0]
        if lookup(settings.providers[first.provider], first.upstream_model) is None:
            raise SettingsError(
                f"models.{model.name}.price: is missing, and the built-in price book does not know "
                f"{first.upstream_model!r} at {first.provider!r}; write {{input: …, output: …}}, "
                f"USD per million tokens"
            )


def route(models: Mapping[str, ModelSettings], asked: str) -> tuple[ModelSettings, str] | None:
    """Which model setting answers to a name, and what patterns pass on of it: the name to send upstream, empty where
    each provider has one of its own. None where nothing does.

    A whole name goes before `prefix/*`, that before `*`.
    """
    named = models.get(asked)
    if named is not None and not named.is_pattern:
        return named, ""
    prefix, _, rest = asked.partition("/")
    prefixed = models.get(f"{prefix}/*")
    if prefixed is not None and rest:
        return prefixed, rest
    rest_of_all = models.get("*")
    return None if rest_of_all is None or not asked else (rest_of_all, asked)


def _routed(model: ModelSettings, settings: Settings, at: FieldPath) -> ModelSettings:
    """The model with all who can answer for it. Raises SettingsError where that leads nowhere."""
    here = at.under("models").under(model.name)
    if model.alias_of:
        return _alias(model, settings, at)
    if model.provider and model.providers:
        raise here.under("providers").wrong("stands beside `provider`: one of the two says who answers")
    if model.providers:
        _refuse_beside(model, ("upstream_model", "cost"), "belongs to each of `providers` here", here)
        places = [here.under("providers").numbered(number) for number in range(len(model.providers))]
    elif not model.provider:
        raise here.under("provider").wrong("is missing; or give `providers`, or `alias_of`")
    else:
        places = [here]
    one = TargetSettings(provider=model.provider, upstream_model=model.upstream_model, cost=model.cost)
    targets = [
        _target(target, model, settings, place) for target, place in zip(model.providers or (one,), places, strict=True)
    ]
    _check_choice(targets, here.under("providers"))
    return replace(model, providers=tuple(targets))


def _target(target: TargetSettings, model: ModelSettings, settings: Settings, at: FieldPath) -> TargetSettings:
    """With its upstream name, if its provider exists."""
    if target.provider not in settings.providers:
        known = ", ".join(settings.providers)
        raise at.under("provider").wrong(f"no such provider; there are: {known}")
    if model.is_pattern and target.upstream_model:
        raise at.under("upstream_model").wrong("a name with * passes names on; it cannot rename them")
    return replace(target, upstream_model=target.upstream_model or ("" if model.is_pattern else model.name))


def _check_choice(targets: Sequence[TargetSettings], at: FieldPath) -> None:
    """Each is another one, and all have a weight or none has."""
    seen = set()
    for number, target in enumerate(targets):
        place = at.numbered(number)
        if (target.provider, target.upstream_model) in seen:
            raise place.under("provider").wrong("the same provider and model stand here before")
        seen.add((target.provider, target.upstream_model))
        if (target.weight is None) != (targets[0].weight is None):
            raise place.under("weight").wrong("all of a model's providers have a weight, or none has")


def _alias(model: ModelSettings, settings: Settings, at: FieldPath) -> ModelSettings:
    """What the other name says, under this one."""
    here = at.under("models").under(model.name)
    _refuse_beside(
        model, tuple(one.name for one in fields(model) if one.name not in ("name", "alias_of")),
        "does not stand beside `alias_of`: an alias is all that the other name is", here,
    )  # fmt: skip
    named = settings.models.get(model.alias_of)
    if named is None or named.alias_of or named.is_pattern or model.is_pattern:
        raise here.under("alias_of").wrong(
            "must name a model of this file that is no alias; neither can have a * in it"
        )
    return replace(_routed(named, settings, at), name=model.name, alias_of=model.alias_of)


def _refuse_beside(model: ModelSettings, names: Sequence[str], why: str, at: FieldPath) -> None:
    for name in names:
        if getattr(model, name) not in ("", (), None):
            raise at.under(name).wrong(why)


class _Loader(yaml.SafeLoader):
    """YAML that takes no key twice."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise SettingsError(f"line {key.start_mark.line + 1}: {key.value!r} is written twice")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        return node


def _yaml(text: str) -> object:
    """The document. Refusals give the place only, not the line: a secret may stand in it."""
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except SettingsError:
        raise
    except yaml.MarkedYAMLError as wrong:
        line = f"line {wrong.problem_mark.line + 1}: " if wrong.problem_mark else ""
        raise SettingsError(f"{line}not YAML: {wrong.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as wrong:
        raise SettingsError(f"not YAML: {type(wrong).__name__}") from None
