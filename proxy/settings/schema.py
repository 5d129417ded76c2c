"""The JSON Schema of the configuration file, for editors; and a file's settings with their defaults.

Invariant: both are made from the declarations, as the reference is. The schema refuses no file that `load` takes; it
does not know what settings mean together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from proxy.settings.fields import VARIABLE, FieldType, setting_name
from proxy.settings.reading import SinkKinds
from proxy.settings.sinks import SinkSettings
from proxy.settings.values import Settings

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20))
_USER = re.compile(r"://([^/@:]*):([^/@]+)@")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    return {"$schema": _DIALECT, "title": "Tokenweir's configuration", **_of_section(Settings)}


def _of_section(section: type[Any]) -> dict[str, Any]:
    known = {setting_name(one): one for one in fields(section) if one.metadata}
    required = [name for name, one in known.items() if one.default is MISSING and one.default_factory is MISSING]
    found: dict[str, Any] = {"type": "object", "properties": {name: _of(one) for name, one in known.items()}}
    if required:
        found["required"] = required
    # A kind of sink has fields of its own.
    return found if section is SinkSettings else {**found, "additionalProperties": False}


def _of(setting: Field[Any]) -> dict[str, Any]:
    kind: FieldType = setting.metadata["kind"]
    found = dict(kind.schema) if kind.section is None else _of_sections(kind)
    # A field without a value is left out, as in `models: {"*": {provider: openai, price: }}`.
    return {"anyOf": [found, {"type": "null"}], "description": setting.metadata["meaning"]}


def _of_sections(kind: FieldType) -> dict[str, Any]:
    assert kind.section is not None
    one = _of_section(kind.section)
    if kind.suffix == "[]":
        return {"type": "array", "items": {"anyOf": [{"type": "string"}, one]} if kind.short else one}
    return {"type": "object", "additionalProperties": one} if kind.suffix else one


class ShownSetting(NamedTuple):
    """A setting as `tokenweir config show` prints it."""

    path: str
    value: Any
    """the value in the file, with `***` in place of a secret; or the default, as in the reference"""
    is_default: bool


def shown(document: object, sinks: SinkKinds) -> Iterator[ShownSetting]:
    """The settings of a valid file, as parsed YAML, and the defaults of the others."""
    yield from _shown(Settings, document, "", sinks)


def _shown(section: type[Any], written: Any, prefix: str, sinks: SinkKinds) -> Iterator[ShownSetting]:
    if section is SinkSettings:
        section = sinks[written["kind"]]
    given = written if isinstance(written, dict) else {}
    for setting in fields(section):
        if not setting.metadata:
            continue
        kind: FieldType = setting.metadata["kind"]
        name = setting_name(setting)
        path, value = f"{prefix}{name}", given.get(name)
        if kind.section is not None and not kind.suffix and (value is not None or setting.default is not None):
            yield from _shown(kind.section, value, f"{path}.", sinks)
        elif value is None:
            yield ShownSetting(path, default_of(setting).replace("`", ""), is_default=True)
        elif kind.section is not None and kind.suffix != "[]" and isinstance(value, dict):
            for each, below in value.items():
                yield from _shown(kind.section, below, f"{path}.{each}.", sinks)
        elif kind.suffix == "[]" and kind.section is not None:
            for number, below in enumerate(value):
                yield from _element(kind.section, below, f"{path}[{number}]", sinks)
        else:
            yield ShownSetting(path, _hidden(kind, value), is_default=False)


def _element(section: type[Any], written: Any, path: str, sinks: SinkKinds) -> Iterator[ShownSetting]:
    if isinstance(written, dict):
        yield from _shown(section, written, f"{path}.", sinks)
    else:
        yield ShownSetting(path, written, is_default=False)


def _hidden(kind: FieldType, value: Any) -> Any:
    """The value without a secret that is written in the file. One in a variable is not known here."""
    if isinstance(value, dict):
        return {name: _hidden(kind, below) for name, below in value.items()} if kind.secret else value
    if not isinstance(value, str):
        return value
    return "***" if kind.secret and not VARIABLE.fullmatch(value) else _without_password(value)


def _without_password(url: str) -> str:
    """A text that may be a URL, as written in the file, with `***` for a password that is no `${VAR}`."""
    user = _USER.search(url)
    if user is None or not VARIABLE.sub("", user[2]):
        return url
    return f"{url[: user.start(2)]}***{url[user.end(2) :]}"


def default_of(setting: Field[Any]) -> str:
    """The default as the reference and `config show` show it."""
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
