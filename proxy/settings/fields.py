"""The fields of settings: the path of a value in the configuration, the type that reads it, and sections of fields.

Invariants: an error begins with the path of the field; no error quotes a value, which could be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

from proxy.settings.faults import Fault, SettingsError, gathered
from proxy.settings.variables import not_set, variable

_T = TypeVar("_T")

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


TEXT: Mapping[str, Any] = {"type": "string"}
"""JSON Schema of a text"""
_VARIABLE: Mapping[str, Any] = {"type": "string", "pattern": r"\$\{"}


def or_variable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of a value, or a variable that has it."""
    return {"anyOf": [schema, _VARIABLE]}


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A place in the configuration, with the environment that values there are read in."""

    env: Mapping[str, str]
    folder: Path
    """base of relative paths"""
    literal_secrets: bool = False
    parts: tuple[str | int, ...] = ()
    """the names of the fields, and the numbers of elements, from the root"""
    sinks: Mapping[str, type[Any]] = field(default_factory=dict)
    """the kinds of sinks → the dataclasses of their settings"""

    @property
    def path(self) -> str:
        """`providers.openai.credentials[0].name`"""
        return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in self.parts).removeprefix(".")

    def under(self, name: str) -> FieldPath:
        """The place of the field `name` in this section."""
        return replace(self, parts=(*self.parts, name))

    def numbered(self, number: int) -> FieldPath:
        """The place of an element of this list, counted from 0."""
        return replace(self, parts=(*self.parts, number))

    def wrong(self, why: str) -> SettingsError:
        """An error about the value at this place."""
        text = f"{self.path}: {why}" if self.parts else why
        return SettingsError(text, (Fault(text, self.parts),))

    def filled(self, text: str) -> str:
        """`text` with each `${VAR}` replaced by the variable's value. Raises SettingsError for a missing variable."""
        return VARIABLE.sub(self._variable, text)

    def _variable(self, match: re.Match[str]) -> str:
        try:
            value = variable(self.env, match[1])
        except SettingsError as wrong:
            raise self.wrong(str(wrong)) from None
        if value is None:
            raise self.wrong(not_set(match[1]))
        return value


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a setting: its description for the reference, and its reader of YAML values."""

    description: str
    read: Callable[[Any, FieldPath], Any]
    section: type[Any] | None = None
    """the dataclass of the fields in the section; None: no section"""
    suffix: str = ""
    """appended in the reference to the name of a repeated section: `.<name>` or `[]`"""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """the JSON Schema of a value that is no section; empty: any value"""
    short: bool = False
    """an element of the list may be a text"""
    secret: bool = False
    """a value that is written in the file is shown nowhere; of a mapping, those of its names"""


def setting(
    kind: FieldType,
    meaning: str,
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    shown: str | None = None,
    formerly: str = "",
    name: str = "",
) -> Any:
    """A field of a section. `shown`: the default in the reference, if not its value. `formerly`: its name in 0.1, which
    is refused with an error that names the new one. `name`: its name in the configuration, if it is not the field's."""
    metadata = {"kind": kind, "meaning": meaning, "shown": shown, "formerly": formerly, "name": name}
    return field(default=default, default_factory=default_factory, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
def settings_section(cls: type[_T]) -> type[_T]:
    """Make a frozen dataclass of the settings in one section."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def setting_name(declared: Field[Any]) -> str:
    """The name of a setting in the configuration. `declared`: a field made by `setting`."""
    return declared.metadata["name"] or declared.name


def read_section(cls: type[Any], raw: object, at: FieldPath, **fixed: object) -> Any:
    """A mapping → the dataclass `cls`, field by field. An absent or empty value is the default."""
    if not isinstance(raw, dict):
        raise at.wrong("must be a mapping of fields")
    known = {setting_name(one): one for one in fields(cls) if one.metadata}
    values = dict(fixed)

    def read(name: str) -> None:
        one = known.get(name)
        if one is None:
            raise at.under(name).wrong(_unknown(name, known))
        if raw.get(name) is not None:
            values[one.name] = one.metadata["kind"].read(raw[name], at.under(name))
        elif one.default is MISSING and one.default_factory is MISSING:
            raise at.under(name).wrong("is missing")

    gathered(partial(read, name) for name in (*(str(name) for name in raw if name not in known), *known))
    return cls(**values)


def _unknown(name: str, known: Mapping[str, Field[Any]]) -> str:
    """The reason why a field is rejected, with its current name or the most similar field."""
    renamed = {field.metadata["formerly"]: new for new, field in known.items()}
    if name in renamed:
        return f"was renamed: write {renamed[name]}"
    if name.isdecimal():  # in `{input: 0,15}`, YAML reads two fields
        return "unknown field; a number has a decimal point, not a comma"
    return f"unknown field{similar(name, known)}"


def similar(name: object, known: Iterable[str]) -> str:
    """The most similar of the known words, as the end of a message."""
    near = get_close_matches(str(name), known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def section(cls: type[Any]) -> FieldType:
    """The fields of the dataclass `cls`."""
    return FieldType("fields", lambda raw, at: read_section(cls, raw, at), cls)


def sections(cls: type[Any], pattern: re.Pattern[str], description: str) -> FieldType:
    """A mapping of names to the fields of `cls`, which has the name as its `name`."""

    def read(raw: object, at: FieldPath) -> dict[str, Any]:
        named = names(raw, at, pattern, description)
        sections = gathered(
            partial(read_section, cls, below, at.under(name), name=name) for name, below in named.items()
        )
        return dict(zip(named, sections, strict=True))

    return FieldType(description, read, cls, suffix=".<name>")


def names(raw: object, at: FieldPath, pattern: re.Pattern[str], description: str) -> dict[str, Any]:
    """A mapping of at least one name. Raises SettingsError."""
    if not isinstance(raw, dict) or not raw:
        raise at.wrong("must be a mapping with at least one name")
    why = f"invalid name: must be {description}; quote it if YAML reads it as a number, a boolean or a date"
    bad = [name for name in raw if not isinstance(name, str) or not pattern.fullmatch(name)]
    if bad:
        raise SettingsError.of_all([at.under(str(name)).wrong(why) for name in bad])
    return raw


def several(cls: type[Any], description: str, *, short: str | None = None) -> FieldType:
    """A list whose elements have the fields of `cls`. `short`: the field that an element which is a text gives."""

    def read(raw: object, at: FieldPath) -> tuple[Any, ...]:
        if not isinstance(raw, list) or not raw:
            raise at.wrong("must be a list with at least one element")
        elements = [{short: below} if short and isinstance(below, str) else below for below in raw]
        return tuple(
            gathered(partial(read_section, cls, below, at.numbered(number)) for number, below in enumerate(elements))
        )

    return FieldType(description, read, cls, suffix="[]", short=short is not None)
