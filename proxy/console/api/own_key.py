"""What the holder of a key reads and changes: the prices that the key pays, and its secret.

Invariants:
- A price is that of the key, after all price rules. It names no provider, no cost and no markup.
- A key is rotated by its holder only if the setting `key_rotation` is on, and never while an earlier secret is valid:
  the secret that another holder has stays valid for GRACE_DEFAULT, in which the operator can act.
- Narrowed keys, keys of identities and blocked keys are not rotated by their holders.
- Every rotation is in the audit log, with the id of the key as the actor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from proxy.billing.keys import GRACE_DEFAULT, ApiKey
from proxy.billing.pricing.rules import Payer
from proxy.console.api.audited_operations import AuditedOperations, RefusedChange
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.console.api.schemas.exchanges import Name
from proxy.foundation.durations import seconds_or_now
from proxy.foundation.times import iso_utc
from proxy.gateway.key_info.allowance import KeyAllowance
from proxy.http.credentials import presented
from proxy.http.errors import ApiError
from proxy.keys import narrowing
from proxy.keys.secrets import is_ours, new_hashed
from proxy.ledger.accounts.audit_log import PendingEntry
from proxy.ledger.accounts.key_store import KeyStore, KeyStoreError
from proxy.storage.executor import BoundedExecutor

Usd = Mapping[str, str]
"""unit → USD as a decimal string: of a million tokens, a thousand searches or pages, an hour of audio, a request, …"""


class LongPrompt(msgspec.Struct, frozen=True):
    """The prices of requests with a long prompt."""

    above_prompt_tokens: int
    usd: Usd


class OwnPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of a model for one key, now."""

    object: Literal["price"] = "price"
    model: str
    usd: Usd | None
    """null: no price is known before the answer"""
    is_stated: bool
    """the provider states the price of each answer; `usd` applies to answers without one"""
    long_prompts: list[LongPrompt]
    served_as: dict[str, Usd]
    """a fact that the answer states, such as `tier:priority` → the prices that apply then"""
    other_usd: list[Usd]
    """the prices that apply if another of the model's providers answers"""


class OwnPrices(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of the models that the key may use, by the names that clients send."""

    object: Literal["list"] = "list"
    listed: list[OwnPrice] = msgspec.field(name="data")


class PricesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects models; by default, those of the key's list of models."""

    model: Name | UnsetType = UNSET
    """one model, also if no list of models has it"""


class Rotate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new secret for the key of the request. It has no options."""


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """The new secret, which is never shown again."""

    object: Literal["rotated_key"] = "rotated_key"
    id: str
    """the id of the key, which stays"""
    key: str
    old_valid_until: str
    """until then, the secret of the request is valid, too"""


@dataclass(frozen=True, slots=True)
class OwnKeyApi:
    """The routes `/v1/me/prices` and `/v1/me/rotate`."""

    keys: KeyStore
    operations: AuditedOperations
    threads: BoundedExecutor
    allowance: KeyAllowance
    pepper: bytes = field(repr=False)
    unix_time: Callable[[], float]
    models: Callable[[ApiKey], Awaitable[Iterable[str]]]
    """the names in the key's list of models"""
    payer: Callable[[ApiKey], Payer]
    prices: Callable[[ApiKey, Payer, Iterable[str]], list[OwnPrice]]
    """the prices of these names that the key may use; called on a thread"""
    allows_rotation: Callable[[], bool]
    """the setting"""

    @property
    def prices_endpoint(self) -> Endpoint:
        """The route of the prices."""
        return Endpoint(
            method="GET", path="/v1/me/prices", summary="The prices that the key pays.", serve=self.listed,
            query=PricesQuery, answers={200: OwnPrices},
        )  # fmt: skip

    @property
    def rotate_endpoint(self) -> Endpoint:
        """The route of the rotation."""
        return Endpoint(
            method="POST", path="/v1/me/rotate", summary="Replace the secret of the key; the new one is shown once.",
            serve=self.rotate, body=Rotate, answers={200: Rotated},
        )  # fmt: skip

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        return self.prices_endpoint, self.rotate_endpoint

    async def listed(self, call: ApiCall) -> ApiReply:
        """The prices of the caller's models. Raises ApiError, OSError."""
        key, model = _own(call), call.query.model
        self.allowance.count(key.key_id)
        names = await self.models(key) if model is UNSET else [model]
        found = await self.threads.run(self.prices, key, self.payer(key), names)
        if model is not UNSET and not found:
            raise ApiError(404, "No such model, or the key may not use it.", param="model", code="model_not_found")
        return ApiReply(OwnPrices(listed=found))

    async def rotate(self, call: ApiCall) -> ApiReply:
        """Replace the caller's secret. Raises ApiError, OSError."""
        key, now = _own(call), self.unix_time()
        self.allowance.count(key.key_id)
        self._check_rotation(key, now)
        is_narrowable = narrowing.parse(presented(call.request, is_ours) or "") is not None
        secret, digest, hint = new_hashed(self.pepper, key.key_id if is_narrowable else None)
        until = now + seconds_or_now(GRACE_DEFAULT)

        def work(_act: PendingEntry) -> ApiKey:
            try:
                return self.keys.rotate(
                    key.key_id, digest=digest, hint=hint, old_until=until, holder_digest=key.digest
                )  # fmt: skip
            except KeyStoreError as overtaken:
                raise RefusedChange(_conflict("Another request has changed this key at the same time.")) from overtaken

        await self.operations.run(call, "key.regenerate", key.key_id, None, work)
        return ApiReply(Rotated(id=key.key_id, key=secret, old_valid_until=iso_utc(until)))

    def _check_rotation(self, key: ApiKey, now: float) -> None:
        """Raises ApiError if the holder may not rotate the key now. Refusals here are not in the audit log, so that a
        client cannot fill it."""
        if not self.allows_rotation():
            raise _not_allowed("Keys are rotated by the operator here; ask for a new secret.")
        if key.is_narrowed:
            raise _not_allowed("A narrowed key cannot be rotated. Rotate the key that it was made from.")
        if not key.has_secret:
            raise _not_allowed("A token of an identity provider has no secret to rotate.")
        if key.old_until is not None and now < key.old_until:
            message = (
                f"The secret of this key was changed, and the one before is valid until {iso_utc(key.old_until)}; it "
                "can be changed again after that. If you did not change it, tell the operator to block the key."
            )
            raise _conflict(message, max(1, ceil(key.old_until - now)))


def _own(call: ApiCall) -> ApiKey:
    """The caller's key. Raises ApiError for an operator."""
    if call.session.key is None:
        message = "Only a key may do this, for itself. Operators have /v1/models and /key/{key}/regenerate."
        raise ApiError(403, message, kind="permission_error", code="key_only")
    return call.session.key


def _conflict(message: str, retry_after_s: int | None = None) -> ApiError:
    return ApiError(409, message, kind="conflict", code="rotated_recently", retry_after_s=retry_after_s)


def _not_allowed(message: str) -> ApiError:
    return ApiError(403, message, kind="permission_error", code="rotation_not_allowed")
