"""The settings of the dimensions of requests: end users, sessions, runs and tags."""

from __future__ import annotations

import re
from dataclasses import astuple, replace

from proxy.billing.dimensions import PRESETS
from proxy.foundation.header_names import NEVER_PASSED
from proxy.settings.fields import TEXT, FieldPath, FieldType, section, setting, settings_section
from proxy.settings.kinds import checked, choices, flag, whole

NEW_VALUES_MAX = 10**9
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


def _header() -> FieldType:
    """The name of a header, in lower case."""

    def read(raw: object, at: FieldPath) -> str:
        if not isinstance(raw, str) or _NAME.fullmatch(raw) is None:
            raise at.wrong("must be the name of a header")
        if raw.lower() in NEVER_PASSED:
            raise at.wrong("must not be a header with another meaning")
        return raw.lower()

    return FieldType("name of a header", read, schema=TEXT)


def _presets() -> FieldType:
    """Some presets, or none."""
    some = choices(PRESETS)
    schema = {key: value for key, value in some.schema.items() if key != "minItems"}
    return replace(some, read=lambda raw, at: () if raw == [] else some.read(raw, at), schema=schema)


@settings_section
class DimensionHeaders:
    """The headers by which clients name dimensions. They are not sent to providers."""

    end_user: str = setting(_header(), "the end user", default="x-tokenweir-end-user")
    session: str = setting(_header(), "the session", default="x-tokenweir-session")
    run: str = setting(_header(), "the run", default="x-tokenweir-run")
    tags: str = setting(_header(), "tags: `team=red,stage=test`", default="x-tokenweir-tags")


@settings_section
class DimensionSettings:
    """Where the dimensions of requests are read, and how many values are kept."""

    sources: tuple[str, ...] = setting(
        _presets(), "the presets that are read, for keys without a list of their own", default=PRESETS, shown="all"
    )
    headers: DimensionHeaders = setting(
        checked(
            section(DimensionHeaders), lambda one: len(set(astuple(one))) == len(astuple(one)), "must have four names"
        ),
        "the headers of the preset `tokenweir`",
        default=DimensionHeaders(),
    )
    new_values_per_key_hour: int = setting(
        whole(0, NEW_VALUES_MAX),
        "largest number of new values of a key within an hour, in each process; further ones are counted together, as "
        "`(other)`",
        default=1_000,
    )
    hash_end_users: bool = setting(
        flag(),
        "store end users as an HMAC by `key_pepper`, so that the ledger has no name of a person; earlier values stay",
        default=False,
    )
