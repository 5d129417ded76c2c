"""Dialects without streams, made from data: embeddings, moderations, rerank, pages, images; and counts of tokens.

Invariant: of an answer, only the usage is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import structs

from proxy.metering.counts import with_total
from proxy.metering.dialect import Dialect, Facts
from proxy.metering.meter import JsonMeter
from proxy.metering.metered import BodyMeter
from proxy.metering.request import RequestFacts, model_of
from proxy.metering.tally import Tally, identifier, says_error
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import NO_USAGE, PromptEvidence, Usage
from proxy.metering.usage_reader import OPENAI_COUNTS, UsageReader
from proxy.metering.wire.json_reader import document_of, reader
from proxy.metering.wire.parts import is_crowded
from proxy.metering.wire.skim import Skim


class PlainAnswer(msgspec.Struct, gc=False):
    """The fields of an answer that are read. Other dialects have subclasses with their names."""

    id: str | None = None
    usage: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    error: Any = None

    @property
    def raw(self) -> dict[str, Any] | None:
        """The usage object."""
        return self.usage or self.meta


_reported = UsageReader(
    **{
        **OPENAI_COUNTS,
        # Voyage and Jina report only a total, which is the prompt
        "prompt_tokens": f"{OPENAI_COUNTS['prompt_tokens']}, {OPENAI_COUNTS['total_tokens']}",
        # of Cohere; OpenRouter
        "searches": "billed_units.search_units | search_units",
    }
)


# The request itself has a price where it is billed; costs as OpenRouter states them.
_NOT_BILLED = "request_count cost cost_details"


def nothing_generated(usage: Usage) -> Usage:
    """`usage` with a completion of 0 where none is reported."""
    if usage.prompt_tokens is None or usage.completion_tokens is not None:
        return usage
    return structs.replace(usage, completion_tokens=0)


CountsOf: TypeAlias = "staticmethod[[dict[str, Any], set[str]], Usage]"


def prompt_in(reported: UsageReader) -> CountsOf:
    """`usage_of` of a `PlainTally` whose answers report only the prompt: nothing is generated, and it is the total."""
    return staticmethod(lambda raw, flags: with_total(nothing_generated(reported(raw, flags))))


class PlainTally(Tally):
    """The usage of one answer. Subclasses of other dialects replace `answer_of` and `usage_of`."""

    __slots__ = ()

    known = members(
        "id object model data results embeddings embedding created error raw_status_code",
        each("usage", f"{_reported.paths} {_NOT_BILLED}"),
        each("meta", f"{_reported.paths} api_version"),
    )

    answer_of: ClassVar[staticmethod[[bytes], PlainAnswer | None]] = staticmethod(reader(PlainAnswer))
    """the fields of a body; None if it is no JSON object"""
    usage_of: ClassVar[CountsOf] = staticmethod(lambda raw, flags: nothing_generated(_reported(raw, flags)))
    """the counts in a usage object; flags invalid counts. An unreported completion is 0"""

    def read(self, event: bytes, name: bytes) -> object | None:
        """Read an event as a whole answer: the dialect has no other events."""
        return self.read_answer(event) or None

    def read_answer(self, body: bytes) -> bool:
        answer = self.answer_of(body)
        if answer is None:
            return False
        self.response_id = identifier(answer.id)
        if says_error(answer.error):
            self.fail("error_body")
        else:
            self.done = True
        if raw := answer.raw:
            self._report(raw, self.usage_of(raw, self.flags))
        return True


# Brackets, quotes and commas of a count; it has 50 bytes.
_MARKS_MAX = 1024


class CountTally(Tally):
    """A count of tokens: its number is the result, not usage; nothing is used."""

    __slots__ = ()

    known = members("input_tokens object")

    def read_answer(self, body: bytes) -> bool:
        document = None if is_crowded(body, _MARKS_MAX) else document_of(body)
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


Document: TypeAlias = dict[str, Any]


def plain_dialect(
    like: Dialect | None = None,
    *,
    prompt: Callable[[Document], PromptEvidence],
    asked: Callable[[Document], Usage] = lambda document: NO_USAGE,
    default_model: str | None = None,
    tally: Callable[[bool | None], Tally] = PlainTally,
    reads_lists: bool = False,
    **fields: Any,
) -> Dialect:
    """A dialect without streams and without generated text.

    `prompt`, `asked`: read these facts of a request, and raise InvalidField. `default_model`: model of a request
    without one; None: the model is required. `reads_lists`: usage depends on the lists in an answer. `like`: the
    dialect whose fields apply where `fields` have none.
    """
    fields |= {
        "facts": _facts_of(prompt, asked, default_model),
        "tally": tally,
        "plain": (lambda: JsonMeter(tally)) if reads_lists else skimmed(tally),
    }
    return Dialect(**fields) if like is None else replace(like, **fields)


def _facts_of(
    prompt: Callable[[Document], PromptEvidence], asked: Callable[[Document], Usage], default_model: str | None
) -> Facts:
    def facts(document: Document, named: str | None = None) -> RequestFacts:
        by_default = default_model is not None and document.get("model") is None
        return RequestFacts(
            model=named or (default_model if by_default else None) or model_of(document),
            streamed=False,
            completion_tokens_max=0,
            prompt=prompt(document),
            asked=asked(document),
        )

    return facts
