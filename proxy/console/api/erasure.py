"""Erases values of dimensions; uses the same functions as `tokenweir erase`.

Invariant: neither the answer nor the audit log contains the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import Engine

from proxy.billing.dimensions import dimension as dimension_from
from proxy.billing.dimensions import value_of
from proxy.billing.keys import AccountKind
from proxy.console.api.audited_operations import AuditedOperations
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, operation
from proxy.console.api.reading import invalid
from proxy.console.api.schemas.keys import Text
from proxy.http.errors import ApiError
from proxy.ledger.accounts.account_store import AccountStore, UnknownAccountError
from proxy.ledger.dimensions.erasure import ERASE, ErasableValue, read_erasable
from proxy.ledger.dimensions.values import DimensionValues
from proxy.settings.operators import OperatorRole
from proxy.storage.executor import BoundedExecutor


class ValueToErase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value of a dimension."""

    dimension: Text
    """`end_user`, `session`, `run`, or a tag as `tag:team`"""
    value: str
    """the text that the client sent"""
    project_id: Text | UnsetType = UNSET
    """id or name; without it, the value is erased in all projects"""

    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"project": "project_id"}


class ErasedValue(msgspec.Struct, frozen=True, kw_only=True):
    """The erased value ids, and the places that contain them."""

    dimension: str
    projects: list[str]
    value_ids: list[str]
    exchanges: int
    """the number of exchanges in the ledger; those of archived months are not counted"""
    entries_by_month: dict[str, int]
    archives: list[str]
    sinks: list[str]
    """the sinks whose servers got entries with these ids"""
    exports: list[str]
    """exports with values"""


@dataclass(frozen=True, slots=True)
class ErasureApi:
    """The route `/dimension/erase`."""

    engine: Engine
    accounts: AccountStore
    operations: AuditedOperations
    threads: BoundedExecutor
    pepper: bytes
    receiving_details: Callable[[Iterable[str]], list[str]]
    """filters the names of sinks: keeps those that send the details of entries"""

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        summary = "Forget an end user, a session, a run or a tag: entries keep a random id, and their amounts."
        yield operation("/dimension/erase", summary, self.erase, ValueToErase, ErasedValue, OperatorRole.ADMIN)

    async def erase(self, call: ApiCall) -> ApiReply:
        """Delete what maps value ids to a value. Raises ApiError, OSError."""
        body: ValueToErase = call.body
        dimension, value = dimension_from(body.dimension), value_of(body.value)
        if dimension is None:
            raise invalid("'dimension': must be end_user, session, run, or tag:NAME.", "dimension")
        if value is None:
            raise invalid("'value': is empty, or has characters that cannot be printed.", "value")

        def find() -> ErasableValue | None:
            project_id = None
            if body.project_id is not UNSET:
                project_id = self.accounts.one(body.project_id, AccountKind.PROJECT).account_id
            return read_erasable(self.engine, dimension, value, self.pepper, project_id)

        try:
            found = await self.threads.run(find)
        except UnknownAccountError as unknown:
            raise ApiError(404, f"'project_id': {unknown}.", param="project_id", code="account_not_found") from None
        if found is None:
            raise ApiError(404, "No such value, or it is erased already.", param="value", code="value_not_found")
        values = DimensionValues(self.engine)
        await self.operations.run(
            call, ERASE, ", ".join(found.value_ids), found.audited, lambda _act: values.erase(found.value_ids)
        )
        traces = found.traces
        return ApiReply(
            ErasedValue(
                **found.audited,
                exchanges=traces.exchanges,
                entries_by_month=traces.months,
                archives=traces.archives,
                sinks=self.receiving_details(traces.sinks),
                exports=traces.exports,
            )
        )
