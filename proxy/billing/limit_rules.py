"""Rules: limits for each value of some dimensions, or for a part of the requests. Pure.

Invariants: A rule is a level in addition to the key, the project and the organization: a request passes the counters of
all of them, or is denied. Each combination of the values of `split_by` has a counter of its own. A request without one
of these dimensions is not counted there; a rule that requires them refuses it. A client that leaves a dimension out, or
makes it up, still has the limits of its key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec
from msgspec import structs

from proxy.billing.dimensions import RUN, Dimensions
from proxy.billing.limits import Limits, Scope, scope_of
from proxy.billing.money import Nusd
from proxy.billing.windows import LIFETIME

RULE_ID = "rule"
"""prefix of the ids of rules, see `foundation.ids.new_id`"""

RULES_MAX = 1_000
"""rules that are not deleted: every process has them in memory"""


class LimitRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. Times: Unix seconds."""

    rule_id: str
    name: str
    """unique among the rules that are not deleted"""
    scope_id: str | None = None
    """the key, project or organization whose requests it limits; None: all"""
    models: tuple[str, ...] = ()
    """the models as clients request them, or beginnings of their names: `gpt-4*`; empty: all"""
    providers: tuple[str, ...] = ()
    """names of providers in the configuration: only requests that one of them serves; empty: all. A request is reserved
    if one of them can serve it, and its charge counts if one of them has served it"""
    values: Mapping[str, str] = {}
    """dimension → value id: only requests that have all of these; they need a `scope_id` of one project"""
    split_by: tuple[str, ...] = ()
    """dimensions, each combination of whose values has the limits for itself; empty: one counter for all requests"""
    required: bool = False
    """requests without one of the dimensions of `split_by` are refused"""
    fallback_model: str | None = None
    """the model that serves a request instead, if this rule refuses it; not one of `models`"""
    limits: Limits
    created_at: float
    deleted_at: float | None = None
    revision: int
    """see `ApiKey.revision`: rules, accounts and keys share one counter"""

    def is_for(self, scope_ids: Iterable[str]) -> bool:
        """Whether it limits requests of a key. `scope_ids`: of the key, its project and its organization."""
        return self.deleted_at is None and (self.scope_id is None or self.scope_id in scope_ids)

    def is_for_model(self, model: str) -> bool:
        return not self.models or any(_matches(model, one) for one in self.models)

    def is_for_one_of(self, providers: Collection[str]) -> bool:
        return not self.providers or any(one in providers for one in self.providers)


KEY = "key"
"""in place of a dimension, in `CLIENT_RULES` alone: the id of the request's key"""

EACH_RUN = LimitRule(
    rule_id="run",
    name="run",
    split_by=(KEY, RUN),
    limits=Limits(budget_window=LIFETIME),
    created_at=0.0,
    revision=0,
)
"""the rule of the caps that clients set for their runs: the limit of a counter is its cap"""

CAPS = ("cap", "cap2", "cap3")
"""dimensions that no client names: the caps of the narrowed key of a request, the outermost first"""

CAP_ID = "c_"
"""the beginning of the value ids of caps; they are not the id of any value"""

EACH_CAP = tuple(structs.replace(EACH_RUN, rule_id=one, name=one, split_by=(KEY, one)) for one in CAPS)
"""the rules of the caps of narrowed keys"""

CLIENT_RULES = {one.rule_id: one for one in (EACH_RUN, *EACH_CAP)}
"""id → rule that no operator makes: the limit of a counter is the cap that its client has set"""


def cap_scope(rule: LimitRule, key_id: str, value_id: str, cap_nusd: Nusd) -> RuleScope:
    """The level of a cap of a key. `rule`: one of `CLIENT_RULES`. `value_id`: of the run, or of the cap."""
    limits = structs.replace(rule.limits, budget_nusd=cap_nusd)
    return RuleScope(f"{rule.rule_id}/{key_id},{value_id}", limits, rule.created_at, rule)


class RuleScope(Scope, frozen=True):
    """The level of a rule that a request counts against."""

    rule: LimitRule


def counter_of(rule: LimitRule, model: str, dimensions: Dimensions, providers: Collection[str] = ()) -> str | None:
    """The id of the counter of a request; None: the rule does not count the request. The rule is for the request's key.
    `providers`: those that can serve the request, or the one that has served it."""
    if not rule.is_for_model(model) or not rule.is_for_one_of(providers):
        return None
    if any(dimensions.get(name) != value for name, value in rule.values.items()):
        return None
    if not rule.split_by:
        return rule.rule_id
    values = [dimensions.get(name) for name in rule.split_by]
    return None if None in values else f"{rule.rule_id}/{','.join(map(str, values))}"


def scopes_of(
    rules: Iterable[LimitRule], model: str, dimensions: Dimensions, providers: Collection[str] = ()
) -> Iterator[RuleScope]:
    """The levels of these rules, all of them for the key, that a request counts against. `providers`: those that can
    serve the request."""
    for rule in rules:
        counter_id = counter_of(rule, model, dimensions, providers)
        if counter_id is not None:
            yield RuleScope(counter_id, rule.limits, rule.created_at, rule)


def missing_dimension(
    rules: Iterable[LimitRule], model: str, dimensions: Dimensions, providers: Collection[str] = ()
) -> str | None:
    """A dimension that one of these rules requires and the request does not have. `providers`: those that can serve
    the request."""
    for rule in rules:
        if rule.required and rule.is_for_model(model) and rule.is_for_one_of(providers):
            for name in rule.split_by:
                if name not in dimensions:
                    return name
    return None


def rule_of(counter_id: str) -> str | None:
    """The id of the rule of a counter; None: it is the counter of a key or an account."""
    rule_id, slash, _ = scope_of(counter_id).partition("/")
    is_rule = rule_id.startswith(f"{RULE_ID}_") or (slash and rule_id in CLIENT_RULES)
    return rule_id if is_rule else None


def dimensions_of(rule: LimitRule, counter_id: str) -> dict[str, str]:
    """Dimension → value id: what all requests of this counter have."""
    found = {**rule.values, **_split(rule, counter_id)}
    found.pop(KEY, None)
    return found


def key_of(rule: LimitRule, counter_id: str) -> str | None:
    """The key whose requests a counter of `CLIENT_RULES` counts; None: another rule's."""
    return _split(rule, counter_id).get(KEY)


def _split(rule: LimitRule, counter_id: str) -> dict[str, str]:
    _, _, values = scope_of(counter_id).partition("/")
    return dict(zip(rule.split_by, values.split(","), strict=False)) if values else {}


def _matches(model: str, pattern: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern
