"""The details of a ledger entry: the members of the JSON object that explains its counts and its amounts.

Invariants: a detail is named here and nowhere else. A detail without a value
is not stored. Details of other versions stay in the stored object, unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from msgspec import UNSET, Struct, UnsetType, field, to_builtins

STOPPED_BY_OPERATOR = "stopped_by_operator"
"""a value of the detail `failed`"""


class EntryDetails(Struct, omit_defaults=True):
    """The details that this version writes. Of a stored entry they may have any type: `of` checks none."""

    recovered: bool | None = None
    """The proxy crashed, and recorded the exchange when it started again."""
    swept: bool | None = None
    """Another proxy recorded the exchange, from the lease of a machine that did not come back."""
    progress: str | None = None
    """`missing`: after a crash, nothing was known of the answer."""
    flags: Sequence[str] | None = None
    """Odd parts of the answer: the first table of this page."""
    failed: str | None = None
    """Why the exchange failed: of the provider, of the connection, or `proxy_bug`; or `stopped_by_operator`."""
    provider_timings: Mapping[str, float] | None = None
    """Times in milliseconds that the provider reports."""
    usage: Mapping[str, Any] | None = None
    """The usage object as the provider sent it."""
    unread: Sequence[str] | None = None
    """Numbers and words that the provider reported and this version does not read."""
    beside_usage: Mapping[str, Any] | None = None
    """Values of `unread` that were not in the usage object."""
    noted_events: int | None = None
    """After a crash: the events in the last note; the counts of later events are in proportion."""
    evidence: Mapping[str, int] | None = None
    """What an estimate was made from: events and characters by kind, and `tokens_counted`."""
    interim_usage: bool | None = None
    """Output followed the reported usage: it is a lower bound."""
    served_instead_of: str | None = None
    """The provider's name of the model that was to serve, if another one did."""
    unpriced_units: Sequence[str] | None = None
    """Units without a price in the price list; they are not charged."""
    cost_unpriced_units: Sequence[str] | None = None
    """Units without a price in the provider's price list; they are not in the cost."""
    transport: str | None = None
    """`websocket`: the exchange is one answer of a session."""
    policy: str | None = None
    """The disconnect policy that was applied after the client had left: `cancel`, `drain`, `resume` or `background`."""
    upstream_status: int | None = None
    """The HTTP status of the provider's response."""
    drain_ended_by: str | None = None
    """The limit that ended a drain: `tokens` or `seconds`."""
    limit: str | None = None
    """The setting whose time limit ended the exchange."""
    taken_up: int | None = None
    """How often clients resumed the stream."""
    credential: str | None = None
    """The name of the provider's credential, if it has several."""
    read_on_ms: float | None = None
    """How long the answer was read after its client had left."""
    resumed: bool | None = None
    """This proxy was started again while the provider generated the answer in the background."""
    asked_later: str | None = None
    """The provider is [asked afterwards](../explanation/estimates.md#asked-afterwards) for the usage, as \
`providers.<name>.usage.later` says: `generation` or `stored`."""
    polls: int | None = None
    """How often the provider was asked for a background response."""
    refuted: Mapping[str, Mapping[str, int]] | None = None
    """Reported counts outside of bounds that no tokenizer can break: no tokens for text, more than 128 letters a \
token, more tokens than bytes. With [`usage.refuted`](settings.md): `estimate`, such a count is estimated instead."""
    implausible: Mapping[str, Mapping[str, int]] | None = None
    """Reported counts outside of bounds of the estimator that honest answers break at most once in 500: a quarter of \
the estimate, and four times; wider for scripts and models that it knows little of."""
    batch: Mapping[str, Any] | None = None
    """The results of a batch: `lines`, `succeeded`, `failed`, `status`."""
    batch_id: str | None = None
    """The provider's id of the batch."""
    custom_id: str | UnsetType | None = UNSET
    """The name of a line of a batch; null: it has none."""
    situation: str | None = None
    """The case of the [billing policy](../explanation/money.md)."""
    details_dropped: Sequence[str] | int | None = None
    """Details that could not be stored; or the size of the record in bytes, if all were too long."""
    billed: str | None = None
    """The billed part of the usage: `prompt+output`, `prompt`, `output` or `nothing`."""
    units: Mapping[str, int] | None = None
    """Counts that have no column of their own."""
    service_tier: str | None = None
    """The reported service tier."""
    speed: str | None = None
    """The reported speed."""
    geography: str | None = None
    """The reported place of processing."""
    longest_prompt_tokens: int | None = None
    """Prompt tokens of the longest step, where the usage is a sum of several."""
    expected_error: float | None = None
    """The typical relative error of the estimate."""
    capped: bool | None = None
    """The estimate exceeded the request's limit or the received bytes, and was reduced to it."""
    hidden_by_time: int | None = None
    """Estimated hidden tokens of an answer that ended before its first word, by its duration; billed only with \
[`hidden_by_time`](settings.md)."""
    limit_exceeded: bool | None = None
    """The output exceeds the request's limit, which the provider did not keep: the estimate is not capped."""
    hidden_reasoning: int | None = None
    """How many of the estimated tokens were never streamed."""
    price: Mapping[str, Any] | None = None
    """The prices of the charge."""
    cost: Mapping[str, Any] | None = None
    """The prices of the cost."""
    other_models: Sequence[Mapping[str, Any]] | None = None
    """Usage of other models, with their prices."""
    stated_usd: str | None = None
    """The cost that the provider states, in USD."""
    attempts: Sequence[Mapping[str, Any]] | None = None
    """Failed requests to earlier providers."""
    reserved_usd: str | None = field(default=None, name="held_usd")
    """The reservation at admission, in USD."""
    unpriced: bool | None = None
    """The charge is unknown: the model has no price."""
    cost_unknown: bool | None = None
    """The cost is unknown."""
    uncounted: bool | None = None
    """Something was billed, and no count is known."""
    delivered_only: bool | None = None
    """The provider broke off and reported no usage: only the delivered output is billed."""
    adjusts: str | None = None
    """In an adjustment: the id of the terminal entry that it corrects."""
    why: str | None = None
    """The reason of an adjustment or a credit."""
    restates: str | None = None
    """The hash of the record that an adjustment was made from."""
    stands: Mapping[str, Any] | None = None
    """Totals that an operator had set: the adjustment left them unchanged."""
    by: str | None = None
    """Who corrected: `operator`, `rerate`, or `provider`: it reported the usage afterwards."""
    actor: str | None = None
    """The name of the operator who corrected."""
    sets: Mapping[str, Any] | None = None
    """The totals that an operator set."""
    read_again: Mapping[str, Any] | None = None
    """The terms of service by a usage that was read again."""
    dimensions: Mapping[str, str] | None = None
    """The [dimensions](glossary.md) of the request, with the ids of their values."""
    fallback: Mapping[str, str] | None = None
    """The `model` that the client requested, and the id of the `limit` that refused it: the entry's model, the \
[fallback model](../how-to/limit-each-user.md#a-cheaper-model-instead-of-a-refusal) of that limit, served instead."""
    byok: Mapping[str, Any] | None = None
    """The [client's own provider credential](../how-to/clients-own-credentials.md) was used: the `terms` of the key, \
`list_usd` (the amount at list price) and the prices of that, `list`."""
    imported: Mapping[str, Any] | None = None
    """The usage never passed the proxy, and was [imported](../how-to/import-usage.md): the `source`, and the `id` of \
the row there."""

    grant: str | None = None
    """The id of the [grant](../how-to/trial-credit.md) that the credit belongs to."""
    grant_move: str | None = None
    """`granted`: the grant began. `expired`: it ended, and the rest is taken back; a positive credit gives back \
the amount that a later charge has used."""

    @classmethod
    def of(cls, stored: object) -> Self:
        """The details in a stored object. Never fails."""
        if type(stored) is not dict and not isinstance(stored, Mapping):  # the second takes five calls
            return cls()
        return cls(**{_FIELDS[name]: value for name, value in stored.items() if name in _FIELDS})

    def stored(self) -> dict[str, Any]:
        """The details with a value, as JSON."""
        stored: dict[str, Any] = to_builtins(self)
        return stored


DETAIL_NAMES: tuple[str, ...] = EntryDetails.__struct_encode_fields__
"""stored names"""
_FIELDS = dict(zip(DETAIL_NAMES, EntryDetails.__struct_fields__, strict=True))


def detail_name(member: Any) -> str:
    """The stored name of a detail, for a query: `detail_name(EntryDetails.units)`."""
    return DETAIL_NAMES[EntryDetails.__struct_fields__.index(member.__name__)]
