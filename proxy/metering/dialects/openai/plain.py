"""Answers of which only the usage is read: what embeddings, moderations and rerank have in common.

Rule: prompt = `prompt_tokens`, else `total_tokens` (Voyage, Jina: nothing else is in it); completion =
`completion_tokens`, else 0: nothing is generated; total = `total_tokens`; searches =
`meta.billed_units.search_units` (Cohere), else `usage.search_units` (OpenRouter). All as reported, never added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from proxy.metering.dialects.openai.usage import count, violations
from proxy.metering.meter import BodyMeter, JsonMeter
from proxy.metering.tally import Counting, Tally, identifier
from proxy.metering.usage import NO_USAGE, UNITS_MAX, Usage
from proxy.metering.wire.json_reader import reader
from proxy.metering.wire.skim import Skim


class _Answer(msgspec.Struct, gc=False):
    id: str | None = None
    usage: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    error: Any = None


_read = reader(_Answer)


class PlainTally(Counting):
    """What one answer says of its usage."""

    __slots__ = ()

    def __init__(self, _cumulative: bool | None = None) -> None:
        super().__init__()

    def read(self, event: bytes, name: bytes) -> object | None:
        """These languages have no streams: an event is read like an answer."""
        return self.read_answer(event) or None

    def read_answer(self, body: bytes) -> bool:
        """One whole answer, or all of it but what is in its lists."""
        answer = _read(body)
        if answer is None:
            return False
        self.response_id = identifier(answer.id)
        if answer.error:
            self.fail("error_body")
        else:
            self.done = True
            self._read_usage(answer.usage or answer.meta)
        return True

    def _read_usage(self, raw: dict[str, Any] | None) -> None:
        if not raw:
            return
        usage = usage_of(raw)
        if usage is None:
            self.flags.add("usage_invalid")
        elif usage != NO_USAGE:
            self.flags.update(violations(usage))
            self.usage, self.usage_raw = usage, raw


def usage_of(raw: Mapping[str, Any]) -> Usage | None:
    """The counts in `raw`, None where it says nothing; None altogether if one of them cannot be a count."""
    billed = raw.get("billed_units")
    units = billed if isinstance(billed, dict) else raw
    try:
        prompt, total = count(raw.get("prompt_tokens")), count(raw.get("total_tokens"))
        completion = count(raw.get("completion_tokens"))
        searches = count(units.get("search_units"), UNITS_MAX)
    except ValueError:
        return None
    if prompt is None:
        prompt = total
    if completion is None and prompt is not None:
        completion = 0
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total, searches=searches)


def skimmed(tally: Callable[[bool | None], Tally]) -> Callable[[], BodyMeter]:
    """Meters answers whose lists are long and say nothing of usage."""
    return lambda: JsonMeter(tally, Skim())
