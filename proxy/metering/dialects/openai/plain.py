"""Answers of which only the usage is read: embeddings, moderations and rerank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import UsageReader
from proxy.metering.meter import JsonMeter
from proxy.metering.metered import BodyMeter
from proxy.metering.tally import Counting, Tally, identifier, says_error
from proxy.metering.unread import each, members
from proxy.metering.usage import Usage
from proxy.metering.wire.json_reader import reader
from proxy.metering.wire.skim import Skim


class _Answer(msgspec.Struct, gc=False):
    id: str | None = None
    usage: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    error: Any = None


_read = reader(_Answer)

_reported = UsageReader(
    # Voyage and Jina report only a total, which is the prompt
    prompt_tokens="prompt_tokens | total_tokens",
    completion_tokens="completion_tokens",
    total_tokens="total_tokens",
    # of Cohere; OpenRouter
    searches="billed_units.search_units | search_units",
)


# The request itself has a price where it is billed; costs as OpenRouter states them.
_NOT_BILLED = "prompt_tokens_details.cached_tokens request_count cost cost_details"


class PlainTally(Counting):
    """The usage of one answer."""

    __slots__ = ()

    known = members(
        "data results embeddings embedding created error raw_status_code",
        each("usage", f"{_reported.paths} {_NOT_BILLED}"),
        each("meta", f"{_reported.paths} api_version"),
    )

    def read(self, event: bytes, name: bytes) -> object | None:
        """These dialects have no streams: an event is read like an answer."""
        return self.read_answer(event) or None

    def read_answer(self, body: bytes) -> bool:
        """Read a whole answer, or one without the contents of its lists."""
        answer = _read(body)
        if answer is None:
            return False
        self.response_id = identifier(answer.id)
        if says_error(answer.error):
            self.fail("error_body")
        else:
            self.done = True
        if raw := answer.usage or answer.meta:
            self._report(raw, usage_of(raw))
        return True


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts in `raw`; None if one is invalid. Nothing is generated: an unreported completion is 0."""
    usage = _reported(raw)
    if usage is None or usage.prompt_tokens is None or usage.completion_tokens is not None:
        return usage
    return structs.replace(usage, completion_tokens=0)


def skimmed(tally: Callable[[bool | None], Tally]) -> Callable[[], BodyMeter]:
    """Creates meters of answers with long lists that are irrelevant to usage."""
    return lambda: JsonMeter(tally, Skim())
