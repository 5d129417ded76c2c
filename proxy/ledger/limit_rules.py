"""Limit rules in SQL.

Invariants: those of limits.py; a rule is never deleted, only marked so, because its counters are still followed. A
change also gives its revision to the default organization: a version that knows no rules then takes a later one for its
own changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import structs
from sqlalchemy import ColumnElement, Connection, Engine, Row, insert, or_, select, update

from proxy.billing.dimensions import dimension
from proxy.billing.keys import DEFAULT_ORGANIZATION
from proxy.billing.limit_rules import CLIENT_RULES, RULES_MAX, LimitRule
from proxy.billing.limits import Limits
from proxy.billing.windows import CALENDAR, CALENDAR_DAY, CALENDAR_HOUR, LIFETIME
from proxy.foundation.durations import seconds_from
from proxy.foundation.names import UnknownNameError
from proxy.ledger.limits import (
    LIMITS,
    checked_limits,
    checked_name,
    limits_of,
    limits_row,
    next_revision,
    with_changes,
)
from proxy.ledger.schema.account_tables import accounts, limit_rules
from proxy.settings.models import PLAIN_MODEL_NAME, PROVIDER_NAME
from proxy.storage.database import Lock, hold, reading, writing

SPLIT_BY_MAX, MODELS_MAX = 3, 50
MODEL_CHARS_MAX = 256
_DAY_S = 86_400

_COLUMNS = limit_rules.c
_PLAIN = frozenset({"name", "models", "required", "fallback_model"})
CHANGES = _PLAIN | {"limits"} | LIMITS
"""the fields that `update` takes; another part of the requests is another rule"""

# Kind of a key or an account → the beginning of its ids, the command that changes it, the path in the admin API.
_OWNERS = {
    "key": ("key_", "keys", "/key"),
    "project": ("proj_", "accounts", "/account"),
    "organization": ("org_", "accounts", "/account"),
}


class RuleError(ValueError):
    """An invalid rule; the message is for the operator."""


class UnknownRuleError(RuleError, UnknownNameError):
    """No rule that is not deleted has this id or name."""


class RuleStore:
    """Creates, lists and changes rules. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds."""
        self._engine = engine
        self._clock = clock

    def create(
        self,
        *,
        rule_id: str,
        name: str,
        limits: Limits,
        scope_id: str | None = None,
        models: Sequence[str] = (),
        providers: Sequence[str] = (),
        values: Mapping[str, str] | None = None,
        split_by: Sequence[str] = (),
        required: bool = False,
        fallback_model: str | None = None,
    ) -> LimitRule:
        """Create a rule. `scope_id`: exists. `values`: dimension → value id. Raises RuleError, or ValueError that names
        the invalid field."""
        with writing(self._engine) as connection:
            hold(connection, Lock.KEYS)
            rule = _checked(
                LimitRule(
                    rule_id=rule_id,
                    name=name,
                    scope_id=scope_id,
                    models=tuple(dict.fromkeys(models)),
                    providers=tuple(dict.fromkeys(providers)),
                    values=dict(values or {}),
                    split_by=tuple(dict.fromkeys(split_by)),
                    required=required,
                    fallback_model=fallback_model,
                    limits=limits,
                    created_at=self._clock(),
                    revision=next_revision(connection),
                )
            )
            others = read_rules(connection)
            if len(others) >= RULES_MAX:
                raise RuleError(f"limits: there are {RULES_MAX} already; delete some, or use --split-by")
            _require_name(others, rule)
            connection.execute(insert(limit_rules).values(_row_of(rule)))
            _revise(connection, rule)
        return rule

    def every(self) -> list[LimitRule]:
        """The rules that are not deleted, oldest first."""
        with reading(self._engine) as connection:
            return sorted(read_rules(connection), key=lambda one: (one.created_at, one.rule_id))

    def one(self, id_or_name: str) -> LimitRule:
        """The rule with this id, or else the one with this name. Raises UnknownRuleError."""
        with reading(self._engine) as connection:
            return _one(connection, id_or_name)

    def update(self, id_or_name: str, **changes: Any) -> LimitRule:
        """Change fields, `limits`, or single limits by their names. Equal values take no new revision.

        Raises RuleError, or ValueError that names the invalid field.
        """
        assert changes.keys() <= CHANGES, f"not fields of a rule: {changes.keys() - CHANGES}"

        def changed(rule: LimitRule) -> LimitRule:
            plain = {name: value for name, value in changes.items() if name in _PLAIN}
            limits = with_changes(rule.limits, changes)
            if limits.quotas.keys() != rule.limits.quotas.keys():  # what was not counted so far is unknown
                raise RuleError("quotas: only their amounts can be changed; create another limit for another quota")
            return _checked(structs.replace(rule, **plain, limits=limits))

        return self._change(id_or_name, changed)

    def delete(self, id_or_name: str) -> LimitRule:
        """Delete the rule: it no longer applies to new requests. Raises UnknownRuleError."""
        now = self._clock()
        return self._change(id_or_name, lambda rule: structs.replace(rule, deleted_at=now))

    def _change(self, id_or_name: str, changed: Callable[[LimitRule], LimitRule]) -> LimitRule:
        with writing(self._engine) as connection:
            hold(connection, Lock.KEYS)
            old = _one(connection, id_or_name)
            new = changed(old)
            if new == old:
                return old
            _require_name(read_rules(connection), new)
            new = structs.replace(new, revision=next_revision(connection))
            connection.execute(update(limit_rules).where(_COLUMNS.rule_id == new.rule_id).values(_row_of(new)))
            _revise(connection, new)
        return new


def read_rules(
    connection: Connection, *conditions: ColumnElement[bool], deleted: bool = False, limit: int | None = None
) -> list[LimitRule]:
    """The rules that meet the conditions, in the order of their last changes; the first `limit` of them. `deleted`:
    deleted ones, too."""
    query = select(limit_rules).where(*conditions).order_by(_COLUMNS.revision).limit(limit)
    if not deleted:
        query = query.where(_COLUMNS.deleted_at.is_(None))
    return [_rule_of(row) for row in connection.execute(query)]


def rules_with_ids(connection: Connection, rule_ids: Collection[str]) -> dict[str, LimitRule]:
    """The rules with these ids, deleted ones and those of clients' caps included."""
    rows = read_rules(connection, _COLUMNS.rule_id.in_(rule_ids), deleted=True) if rule_ids else []
    return {one.rule_id: one for one in (*rows, *CLIENT_RULES.values()) if one.rule_id in rule_ids}


def _revise(connection: Connection, rule: LimitRule) -> None:
    is_default = accounts.c.account_id == DEFAULT_ORGANIZATION
    connection.execute(update(accounts).where(is_default).values(revision=rule.revision))


def _one(connection: Connection, id_or_name: str) -> LimitRule:
    found = read_rules(connection, or_(_COLUMNS.rule_id == id_or_name, _COLUMNS.name == id_or_name))
    matches = [one for one in found if one.rule_id == id_or_name] or found
    if not matches:
        raise UnknownRuleError(f"limit: {_unknown(id_or_name)}")
    return matches[0]


def _unknown(id_or_name: str) -> str:
    for kind, (prefix, command, path) in _OWNERS.items():
        if id_or_name.startswith((prefix, f"{kind} ")):
            return f"the limits of a {kind} are changed with `tokenweir {command} update`, or with POST {path}/update"
    return f"no limit has the id or the name {id_or_name!r}"


def _require_name(others: Sequence[LimitRule], rule: LimitRule) -> None:
    if any(one.name == rule.name for one in others if one.rule_id != rule.rule_id):
        raise RuleError(f"name: another limit already has the name {rule.name!r}")


def _checked(rule: LimitRule) -> LimitRule:
    """The rule, if it is valid. Raises ValueError that names the invalid field."""
    checked_name("name", rule.name)
    _check_limits(checked_limits(rule.limits))
    if len(rule.models) > MODELS_MAX:
        raise RuleError(f"models: must be at most {MODELS_MAX}, not {len(rule.models)}")
    for one in rule.models:
        if not one or not one.isprintable() or len(one) > MODEL_CHARS_MAX or "*" in one[:-1]:
            raise RuleError(f"models: must be names of models, or their beginnings as gpt-4*, not {one!r}")
    _check_providers(rule)
    if len(rule.split_by) > SPLIT_BY_MAX:
        raise RuleError(f"split_by: must be at most {SPLIT_BY_MAX} dimensions, not {len(rule.split_by)}")
    for name in (*rule.split_by, *rule.values):
        if dimension(name) != name:
            raise RuleError(f"split_by: {name!r} is no dimension: end_user, session, run, or a tag as tag:team")
    if both := rule.values.keys() & set(rule.split_by):
        raise RuleError(f"split_by: {min(both)} has one value in this limit already")
    if rule.required and not rule.split_by:
        raise RuleError("required: needs split_by, the dimensions that requests must have")
    if rule.fallback_model is not None:
        _check_fallback(rule, rule.fallback_model)
    return rule


def _check_providers(rule: LimitRule) -> None:
    """Raises RuleError."""
    if len(rule.providers) > MODELS_MAX:
        raise RuleError(f"providers: must be at most {MODELS_MAX}, not {len(rule.providers)}")
    for one in rule.providers:
        if PROVIDER_NAME.fullmatch(one) is None:
            raise RuleError(f"providers: must be names of providers in the configuration, not {one!r}")
    if (
        rule.providers
        and (rule.limits.budget_nusd is not None or rule.limits.quotas)
        and not _is_short(rule.limits.budget_window)
    ):
        raise RuleError("budget_window: must be at most a day for some providers, such as calendar_day or 24h")


def _is_short(window: str) -> bool:
    """Whether the entries of a window can be read while a request waits."""
    if window == LIFETIME or window in CALENDAR:
        return window in (CALENDAR_HOUR, CALENDAR_DAY)
    return seconds_from(window) <= _DAY_S


def _check_limits(limits: Limits) -> None:
    """Raises RuleError."""
    if limits.prepaid or limits.cost_in_answers:
        raise RuleError("prepaid, cost_in_answers: are for keys and accounts only")
    if not limits.any and limits.budget_nusd is None:
        raise RuleError("limits: give at least one: a budget, a quota, rpm, tpm or parallel")
    if limits.alert_only and limits.budget_nusd is None:
        raise RuleError("alert_only: needs a budget")
    if limits.thresholds and limits.budget_nusd is None:
        raise RuleError("thresholds: needs a budget: a quota or a rate sends no alert")


def _check_fallback(rule: LimitRule, model: str) -> None:
    """Raises RuleError."""
    if PLAIN_MODEL_NAME.fullmatch(model) is None:
        raise RuleError(f"fallback_model: must be the name of a model, not {model!r}")
    if rule.is_for_model(model):
        raise RuleError(f"fallback_model: {model} counts in this limit, too: set the models of the limit, without it")
    limits = rule.limits
    if limits.alert_only and not (limits.quotas or limits.rpm or limits.tpm or limits.parallel):
        raise RuleError("fallback_model: cannot be combined with alert_only: such a limit refuses no request")


_SAME_NAMES = ("rule_id", "name", "scope_id", "required", "fallback_model", "created_at", "deleted_at")


def _rule_of(row: Row[Any]) -> LimitRule:
    fields = row._asdict()
    return LimitRule(
        **{name: fields[name] for name in _SAME_NAMES},
        models=tuple(row.models or ()),
        providers=tuple(row.providers or ()),
        values=row.dimension_values or {},
        split_by=tuple(row.split_by or ()),
        limits=limits_of(row.limits),
        revision=row.revision,
    )


def _row_of(rule: LimitRule) -> dict[str, Any]:
    fields = structs.asdict(rule)
    values = fields.pop("values")
    return {
        **fields,
        "dimension_values": dict(values) or None,
        "models": list(rule.models) or None,
        "providers": list(rule.providers) or None,
        "split_by": list(rule.split_by) or None,
        "limits": limits_row(rule.limits),
    }
