"""The configuration reference as Markdown, generated from the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from proxy.billing.settlement import POLICY
from proxy.settings.kinds import FieldType
from proxy.settings.values import Settings

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20))


def reference() -> str:
    """Two tables: every setting (name, type, default, meaning), and what is billed in which situation."""
    settings = ["| name | type | default | meaning |", "|---|---|---|---|", *_rows(Settings, "", {})]
    policy = ["## What is billed when", "", "| situation | bills | when |", "|---|---|---|"]
    policy += [f"| `{situation}` | `{rule.bills}` | {rule.when} |" for situation, rule in POLICY.items()]
    return "\n".join([*settings, "", *policy, ""])


def _rows(section: type[Any], prefix: str, listed: dict[type[Any], str]) -> Iterator[str]:
    """`listed`: sections that have rows already → the name that those rows are under."""
    known = _known(section, listed)
    listed |= {each: prefix.rstrip(".") for each in section.__mro__ if is_dataclass(each) and each not in listed}
    for setting in fields(section):
        if not setting.metadata or setting.name in known:
            continue
        kind: FieldType = setting.metadata["kind"]
        name = f"{prefix}{setting.name}"
        meaning = setting.metadata["meaning"] + _cross_reference(kind, listed)
        cells = (f"`{name}`", kind.description, _default(setting), meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        if kind.section is not None:
            yield from _rows(kind.section, f"{name}{kind.suffix}.", listed)


def _known(section: type[Any], listed: Mapping[type[Any], str]) -> set[str]:
    return {field.name for each in section.__mro__ if each in listed for field in fields(each)}


def _cross_reference(kind: FieldType, listed: Mapping[type[Any], str]) -> str:
    """The place of the section's fields, if they are listed already."""
    if kind.section is None:
        return ""
    place = next((listed[each] for each in kind.section.__mro__ if each in listed), None)
    return "" if place is None else f"; fields as in `{place}`"


def _default(setting: Field[Any]) -> str:
    text: str | None = setting.metadata["default"]
    if text is not None:
        return text
    if setting.default is MISSING:
        return "*required*"
    return "as below" if is_dataclass(setting.default) else f"`{_written(setting)}`"


def _written(setting: Field[Any]) -> str:
    """The default as written in the file."""
    value = setting.default
    if isinstance(value, bool | Path):
        return str(value).lower()
    if isinstance(value, int) and "bytes" in setting.name:
        return next((f"{value // unit} {name}" for name, unit in _UNITS if value % unit == 0), str(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
