"""What keys are not shown of exchanges and statements if the setting `hide_providers` is on.

Invariant: an answer for a key is made from entries without the names of providers, their models and credentials, their
raw usage objects and their errors; amounts, counts and times stay.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from msgspec.structs import replace as replace_fields

from proxy.billing.details import STOPPED_BY_OPERATOR, EntryDetails, detail_name
from proxy.billing.entries import LedgerEntry
from proxy.console.api.sessions import ConsoleSession
from proxy.http.errors import ApiError
from proxy.reports.exchanges import SettledExchange
from proxy.reports.statement import Statement

_HIDDEN = frozenset(
    map(
        detail_name,
        (
            EntryDetails.attempts, EntryDetails.credential, EntryDetails.served_instead_of,
            EntryDetails.usage, EntryDetails.unread, EntryDetails.beside_usage, EntryDetails.provider_timings,
            EntryDetails.cost, EntryDetails.cost_unpriced_units, EntryDetails.stated_usd, EntryDetails.failed,
            EntryDetails.upstream_status, EntryDetails.asked_later, EntryDetails.flags, EntryDetails.geography,
        ),
    )
)  # fmt: skip


ANOTHER_MODEL = "another model"
"""in place of a model that a provider used beside the requested one"""

_OTHER_MODELS = detail_name(EntryDetails.other_models)


def hides_from(session: ConsoleSession, *, hides: bool) -> bool:
    """Whether the caller is not shown providers. `hides`: the setting."""
    return hides and session.key is not None


def require_visible(session: ConsoleSession, param: str, names: Collection[str], *, hides: bool) -> None:
    """Raises ApiError 403 if the caller names providers (in a filter or a group) and is not shown any."""
    if names and hides_from(session, hides=hides):
        message = f"'{param}': providers are not shown to keys here."
        raise ApiError(403, message, kind="permission_error", param=param, code="providers_hidden")


def without_provider(found: SettledExchange) -> SettledExchange:
    """The exchange without what is hidden."""
    return replace(found, entries=tuple(map(_hidden, found.entries)))


def statement_without_providers(statement: Statement) -> Statement:
    """The statement without the names of other models than those that clients requested."""
    keys = [
        replace(key, prices=[replace_fields(one, used_model=one.used_model and ANOTHER_MODEL) for one in key.prices])
        for key in statement.keys
    ]
    return replace(statement, keys=keys)


def _hidden(entry: LedgerEntry) -> LedgerEntry:
    details = {
        name: value for name, value in entry.details.items() if name not in _HIDDEN or value == STOPPED_BY_OPERATOR
    }
    if isinstance(others := details.get(_OTHER_MODELS), list):  # they are part of the charge
        details[_OTHER_MODELS] = [{**one, "model": ANOTHER_MODEL} for one in others if isinstance(one, dict)]
    return replace_fields(entry, provider="", upstream_model="", estimator=None, details=details)
