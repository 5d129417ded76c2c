"""The configuration reference as Markdown, generated from the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from proxy.billing.settlement import POLICY
from proxy.settings.fields import FieldType, setting_name
from proxy.settings.reading import SinkKinds
from proxy.settings.sinks import SinkSettings
from proxy.settings.values import Settings

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20))


def reference(sinks: SinkKinds) -> str:
    """Two tables: every setting (name, type, default, meaning), and the billed parts in each situation."""
    settings = ["| name | type | default | meaning |", "|---|---|---|---|", *_rows(Settings, "", {}, sinks)]
    policy = ["## What is billed when", "", "| situation | bills | when |", "|---|---|---|"]
    policy += [f"| `{situation}` | `{rule.bills}` | {rule.when} |" for situation, rule in POLICY.items()]
    return "\n".join([*settings, "", *policy, ""])


def _rows(section: type[Any], prefix: str, listed: dict[type[Any], str], sinks: SinkKinds) -> Iterator[str]:
    """The rows of a section. `listed`: sections that have rows already → the name in those rows."""
    known = _known(section, listed)
    listed |= {each: prefix.rstrip(".") for each in section.__mro__ if is_dataclass(each) and each not in listed}
    for setting in fields(section):
        if not setting.metadata or setting.name in known:
            continue
        kind: FieldType = setting.metadata["kind"]
        name = f"{prefix}{setting_name(setting)}"
        yield _row(name, kind.description, setting, setting.metadata["meaning"] + _cross_reference(kind, listed))
        if kind.section is SinkSettings:
            yield from _sink_rows(f"{name}{kind.suffix}.", sinks)
        elif kind.section is not None:
            yield from _rows(kind.section, f"{name}{kind.suffix}.", listed, sinks)


def _sink_rows(prefix: str, sinks: SinkKinds) -> Iterator[str]:
    """One row per name; where the kinds of sinks differ, it has the meaning for each kind."""
    named: dict[str, dict[str, Field[Any]]] = {}
    for kind, section in sinks.items():
        for setting in fields(section):
            if setting.metadata:
                named.setdefault(setting_name(setting), {})[kind] = setting
    for name, settings in named.items():
        first = next(iter(settings.values()))
        words = " or ".join(f"`{kind}`" for kind in sinks) if name == "kind" else first.metadata["kind"].description
        yield _row(f"{prefix}{name}", words, first, _meaning_by_kind(settings, len(sinks)))


def _meaning_by_kind(settings: Mapping[str, Field[Any]], kinds: int) -> str:
    meanings: dict[str, list[str]] = {}
    for kind, setting in settings.items():
        meanings.setdefault(setting.metadata["meaning"], []).append(f"`{kind}`")
    if len(settings) == kinds and len(meanings) == 1:
        return next(iter(meanings))
    return "; ".join(f"{', '.join(words)}: {meaning}" for meaning, words in meanings.items())


def _row(name: str, words: str, setting: Field[Any], meaning: str) -> str:
    cells = (f"`{name}`", words, default_of(setting), meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _known(section: type[Any], listed: Mapping[type[Any], str]) -> set[str]:
    return {field.name for each in section.__mro__ if each in listed for field in fields(each)}


def _cross_reference(kind: FieldType, listed: Mapping[type[Any], str]) -> str:
    """A reference to the section's fields, if they are listed already."""
    if kind.section is None:
        return ""
    found = next((each for each in kind.section.__mro__ if each in listed), None)
    if found is None:
        return ""
    which = "fields" if found is kind.section else "those of its fields that are not listed here"
    return f"; {which} as in `{listed[found]}`"


def default_of(setting: Field[Any]) -> str:
    """The default as the reference shows it."""
    text: str | None = setting.metadata["shown"]
    if text is not None:
        return text
    if setting.default is MISSING:
        return "*required*"
    if setting.default is None:
        return "none"
    return "as below" if is_dataclass(setting.default) else f"`{_written(setting)}`"


def _written(setting: Field[Any]) -> str:
    """The default as written in the file."""
    value = setting.default
    if isinstance(value, bool | Path):
        return str(value).lower()
    if isinstance(value, int) and "bytes" in setting.name:
        return next((f"{value // unit} {name}" for name, unit in _UNITS if value and value % unit == 0), str(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
