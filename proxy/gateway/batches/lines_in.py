"""Checks the lines of a batch before the request to the provider, each as strictly as a single request.

Invariants: the lines for the provider are the parsed lines, serialised again. All lines go to one provider. The largest
cost of each line is known, or the batch is refused. An error names the line and the field.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import random
from time import monotonic
from typing import Any

from msgspec import structs

from proxy.billing.batch import BatchInput, Share, names_digest
from proxy.billing.keys import ApiKey
from proxy.billing.pricing.quote import completion_tokens
from proxy.foundation.long_bytes import copied, find
from proxy.foundation.slices import Slice, in_slices
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models, Route, by_health
from proxy.http import errors
from proxy.http.errors import ApiError
from proxy.http.field_names import refuse_ambiguous_names
from proxy.http.json_body import parse_object, serialise
from proxy.metering.dialect import Dialect
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.file_ids import file_ids
from proxy.metering.request import COST_MEMBER, InvalidField, RequestFacts
from proxy.metering.stored_objects.api import BatchApi, custom_id_of
from proxy.metering.usage import NO_USAGE, Usage

# More kinds of lines than models are configured.
SHARES_MAX = 100
# Bytes of blank lines that are skipped at once: half a millisecond.
BLANK_BYTES = 64 * 1024
# The ids of files in one look-up.
FILES_MAX = 1_000

_BLANK = re.compile(rb"[ \t\n\r\f\v]*+")

CheckFiles = Callable[[ApiKey, Collection[str], str], Awaitable[object]]
"""key, ids of files, and the provider that must store them. Raises ApiError"""


@dataclass(slots=True)
class _Totals:
    """The totals of the lines of one model so far."""

    route: Route
    share: Share
    names: list[str] = field(default_factory=list)


class LineChecker:
    """Call `line` for each line of one batch, then `checked`."""

    def __init__(
        self, api: BatchApi, key: ApiKey, models: Models, estimator: Estimator, *, completion_tokens_default: int
    ) -> None:
        self._api = api
        self._key = key
        self._models = models
        self._estimator = estimator
        self._default = completion_tokens_default
        self._endpoint: str | None = None
        self._provider: Provider | None = None
        self._routes: dict[str, Route] = {}
        self._totals: dict[tuple[str, str | None, str | None], _Totals] = {}
        self._names: set[str] = set()
        self._digests = 0
        self._files: set[str] = set()
        self.slice = Slice()
        """the current slice of the event loop's time"""

    @property
    def provider(self) -> Provider:
        """The provider of all lines. Only after the first line."""
        assert self._provider is not None
        return self._provider

    async def line(self, where: str, custom_id: object, endpoint: str, body: object, size: int) -> dict[str, Any]:
        """Check one line of `size` bytes. `where`: begins the error. Returns the body for the provider. Raises
        ApiError."""
        await self.slice.give_way()
        with _named(where):
            return await self._checked(custom_id, endpoint, body, size)

    async def checked(self, check_files: CheckFiles) -> BatchInput:
        """The checked lines, when all were read. Raises ApiError."""
        if self._endpoint is None:
            raise errors.bad_request("The batch has no requests.", code="empty_batch")
        ids = sorted(self._files)
        for at in range(0, len(ids), FILES_MAX):
            await check_files(self._key, ids[at : at + FILES_MAX], self.provider.settings.name)
        shares = tuple(one.share for one in self._totals.values())
        return BatchInput(self._endpoint, shares, names_digest(self._digests))

    def names(self) -> dict[str, list[str]]:
        """Model → the names of its lines."""
        found: dict[str, list[str]] = {}
        for (model, _, _), one in self._totals.items():
            found.setdefault(model, []).extend(one.names)
        return found

    async def _checked(self, custom_id: object, endpoint: str, body: object, size: int) -> dict[str, Any]:
        name = self._new_name(custom_id)
        dialect = self._dialect(endpoint)
        if not isinstance(body, dict):
            raise InvalidField(self._member, "must be an object")
        with _within(self._member):
            facts, files = await in_slices(size, _read, dialect, body)
        route = self._route(facts.model, dialect)
        self._add(name, facts, route)
        self._files |= files
        sent = dialect.upstream_document(body, upstream_model=route.upstream_model, inject_usage=False)
        sent.pop(COST_MEMBER, None)  # the cost of a line is not known before it is settled
        return sent

    @property
    def _member(self) -> str:
        return "params" if self._api.results_after else "body"

    def _new_name(self, custom_id: object) -> str:
        name = custom_id_of(custom_id)
        if name is None:
            raise InvalidField("custom_id", "must be a string of up to 256 printable characters")
        if name in self._names:
            raise InvalidField("custom_id", "must be different in each request")
        if len(self._names) >= self._api.lines_max:
            raise InvalidField("custom_id", f"is one too many: a batch has up to {self._api.lines_max} requests")
        self._names.add(name)
        self._digests += name_digest(name)
        return name

    def _dialect(self, endpoint: str) -> Dialect:
        dialect = self._api.endpoints.get(endpoint)
        if dialect is None:
            raise InvalidField("url", f"must be one of {', '.join(self._api.endpoints)}")
        if self._endpoint not in (None, endpoint):
            raise InvalidField("url", "must be the same in all requests of a batch")
        self._endpoint = endpoint
        return dialect

    def _route(self, model: str, dialect: Dialect) -> Route:
        """The route of a line. Raises ApiError, InvalidField."""
        known = self._routes.get(model)
        if known is not None:
            return known
        ways = batch_ways(self._models, model, self._key, self._api, dialect)
        if self._provider is None:
            first = by_health(replace(ways[0], others=tuple(ways[1:])), monotonic(), random)
            ways = [first if isinstance(first, Route) else ways[0]]
            self._provider = ways[0].provider
        found = next((way for way in ways if way.provider is self._provider), None)
        if found is None:
            raise InvalidField("model", "must be at the same provider as the other models of the batch")
        if self._routes and self._api.results_after is None:
            raise InvalidField("model", "must be the same in all requests of a batch")
        self._routes[model] = found
        return found

    def _add(self, name: str, facts: RequestFacts, route: Route) -> None:
        prompt = self._estimator.prompt_tokens(route.model_key, facts.prompt)
        completion = completion_tokens(
            requested=facts.completion_tokens_max, n=facts.n,
            default=self._default, model_max=route.completion_tokens_max,
        )  # fmt: skip
        kind = facts.model, facts.served_as.speed, facts.served_as.geography
        one = self._totals.get(kind)
        if one is None:
            if len(self._totals) >= SHARES_MAX:
                raise InvalidField("model", f"is one too many: a batch has up to {SHARES_MAX}")
            share = Share(facts.model, route.upstream_model, 0, 0, 0, 0, *kind[1:])
            one = self._totals[kind] = _Totals(route, share)
        share = one.share
        one.names.append(name)
        one.share = structs.replace(
            share,
            lines=share.lines + 1,
            prompt_tokens=share.prompt_tokens + prompt,
            completion_tokens=share.completion_tokens + completion,
            longest_prompt_tokens=max(share.longest_prompt_tokens, prompt),
            units=_summed(share.units, facts.asked),
        )


def batch_ways(models: Models, model: str, key: ApiKey, api: BatchApi, dialect: Dialect) -> list[Route]:
    """The providers that take lines for this model, in order. Raises ApiError."""
    route = models.route(model)
    if route is None:
        raise errors.unknown_model(model)
    if not key.allows(model):
        raise errors.model_not_allowed(model)
    ways = [one for one in (route, *route.others) if one.provider.supports(dialect) and one.provider.supports(api)]
    if not ways:
        raise errors.unsupported_dialect(model, api.path)
    return ways


async def checked_file(content: bytes, checker: LineChecker) -> bytes:
    """The lines of a file for OpenAI's batches, as they are uploaded. Raises ApiError."""
    written: list[bytes] = []
    for number, start, end in _lines(content):
        if start == end:
            await checker.slice.give_way()
            continue
        where = f"line {number}"
        with _named(where):
            document = await in_slices(end - start, _line, content, start, end)
        url, size = document.get("url"), end - start
        body = await checker.line(where, document.get("custom_id"), str(url), document.get("body"), size)
        written += (await in_slices(size, serialise, {**document, "body": body}), b"\n")
    return await in_slices(len(content), b"".join, written)


def _line(content: bytes, start: int, end: int) -> dict[str, Any]:
    """Parse one line. Raises InvalidField, ApiError."""
    document = parse_object(copied(content, start, end))
    for name in document:
        if name not in ("custom_id", "method", "url", "body"):
            raise InvalidField(name if name.isprintable() else "…", "is no field of a line")
    if document.get("method") != "POST":
        raise InvalidField("method", "must be POST")
    return document


def _read(dialect: Dialect, body: dict[str, Any]) -> tuple[RequestFacts, set[str]]:
    """The facts of a request, and the ids of files that it names. Raises InvalidField, ApiError."""
    refuse_ambiguous_names(body)
    facts = dialect.facts(body)
    _refuse(facts)
    return facts, file_ids(body)


def _lines(content: bytes) -> Iterator[tuple[int, int, int]]:
    """The number of each line that is not blank, and where it begins and ends; an empty one after each BLANK_BYTES of
    blank lines. Lines end at LF. Nothing copies the whole content."""
    at = start = 3 if content.startswith(b"\xef\xbb\xbf") else 0
    number = 1
    while at < len(content):
        blank = _BLANK.match(content, at, at + BLANK_BYTES)
        assert blank is not None, "it matches nothing at least"
        number += content.count(b"\n", at, blank.end())
        start = max(start, content.rfind(b"\n", at, blank.end()) + 1)
        if blank.end() == min(at + BLANK_BYTES, len(content)):
            at = blank.end()
            yield number, at, at
            continue
        end = find(content, b"\n", blank.end())
        end = len(content) if end < 0 else end
        yield number, start, end
        at = start = end + 1
        number += 1


def name_digest(name: str) -> int:
    """A digest of a line's name. The sum of the digests does not depend on the order of the lines."""
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest())


def _refuse(facts: RequestFacts) -> None:
    """Raises InvalidField for a request that a batch cannot contain."""
    if facts.streamed:
        raise InvalidField("stream", "is not supported in batches")
    if facts.in_background:
        raise InvalidField("background", "is not supported in batches")
    if facts.continues is not None:
        raise InvalidField("previous_response_id", "is not supported in batches")


def _summed(units: Usage, more: Usage) -> Usage:
    """The sum of counts that are not tokens."""
    if more is NO_USAGE:
        return units
    counts = {
        name: (getattr(units, name) or 0) + count
        for name in Usage.__struct_fields__
        if not name.endswith("_tokens") and (count := getattr(more, name)) is not None
    }
    return structs.replace(units, **counts)


@contextmanager
def _within(member: str) -> Iterator[None]:
    """Add the enclosing member to the name of an invalid field."""
    try:
        yield
    except InvalidField as refusal:
        raise InvalidField(f"{member}.{refusal.param}", str(refusal).partition(": ")[2]) from None


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Add the line to an error."""
    try:
        yield
    except InvalidField as refusal:
        raise errors.bad_request(f"{where}, {refusal}", param=refusal.param, code="invalid_value") from None
    except ApiError as refusal:
        refusal.message = f"{where}, {refusal.message}"
        raise
