"""Answers of which only the usage is read: embeddings, moderations, rerank; and counts of tokens, which have none."""

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
from proxy.metering.wire.json_reader import document_of, reader
from proxy.metering.wire.skim import Skim


class Answer(msgspec.Struct, gc=False):
    """What is read of an answer. Another dialect may name the members otherwise."""

    id: str | None = None
    usage: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    error: Any = None

    @property
    def raw(self) -> dict[str, Any] | None:
        """The usage object."""
        return self.usage or self.meta


_read = reader(Answer)


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


def nothing_generated(usage: Usage | None) -> Usage | None:
    """`usage` with a completion of 0 where none is reported."""
    if usage is None or usage.prompt_tokens is None or usage.completion_tokens is not None:
        return usage
    return structs.replace(usage, completion_tokens=0)


class PlainTally(Counting):
    """The usage of one answer. Another dialect may say how it is read: `answer_of`, `usage_of`."""

    __slots__ = ()

    known = members(
        "data results embeddings embedding created error raw_status_code",
        each("usage", f"{_reported.paths} {_NOT_BILLED}"),
        each("meta", f"{_reported.paths} api_version"),
    )

    @staticmethod
    def answer_of(body: bytes) -> Answer | None:
        """What is read of an answer; None if it is no JSON object."""
        return _read(body)

    @staticmethod
    def usage_of(raw: dict[str, Any]) -> Usage | None:
        """The counts in `raw`; None if one is invalid. An unreported completion is 0."""
        return nothing_generated(_reported(raw))

    def read(self, event: bytes, name: bytes) -> object | None:
        """These dialects have no streams: an event is read like an answer."""
        return self.read_answer(event) or None

    def read_answer(self, body: bytes) -> bool:
        """Read a whole answer, or one without the contents of its lists."""
        answer = self.answer_of(body)
        if answer is None:
            return False
        self.response_id = identifier(answer.id)
        if says_error(answer.error):
            self.fail("error_body")
        else:
            self.done = True
        if raw := answer.raw:
            self._report(raw, self.usage_of(raw))
        return True


class CountTally(Counting):
    """A count of tokens: its number is the result, not usage; nothing is used."""

    __slots__ = ()

    known = members("input_tokens object")

    def read(self, event: bytes, name: bytes) -> None:
        """There are no streams."""

    def read_answer(self, body: bytes) -> bool:
        """Read a whole answer."""
        document = document_of(body)
        if not isinstance(document, dict):
            return False
        if says_error(document.get("error")):
            self.fail("error_body")
            return True
        self.done = True
        self.usage, self.usage_raw = Usage(prompt_tokens=0, completion_tokens=0, total_tokens=0), document
        return True


def skimmed(tally: Callable[[bool | None], Tally]) -> Callable[[], BodyMeter]:
    """Creates meters of answers with long lists that are irrelevant to usage."""
    return lambda: JsonMeter(tally, Skim())
