"""The flags of a ledger entry, and the numbers of a usage that this version does not read, as lines for a terminal.

Invariant: docs/reference/flags.md has these rows, word for word.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from proxy.billing.details import EntryDetails
from proxy.billing.entries import LedgerEntry
from proxy.billing.later import TIER_DOUBTFUL, UNANSWERED
from proxy.metering.generation import OTHER_TOKENIZER
from proxy.metering.plausibility import IMPLAUSIBLE, REFUTED
from proxy.metering.unknown_fields import USAGE_OBJECTS


class FlagRow(NamedTuple):
    """Flags with one meaning."""

    names: str
    """the flags, separated by blanks"""
    seen: str
    """the odd part of the answer"""
    billed: str


FLAG_ROWS = (
    FlagRow(
        "reasoning_added",
        "reasoning that the completion does not contain: the total shows it, or it exceeds a completion that was seen",
        "completion and reasoning",
    ),
    FlagRow(
        "reasoning_exceeds_completion",
        "more reasoning than completion, and no other output: the host counted it with another tokenizer",
        "the completion, as reported",
    ),
    FlagRow(
        "cached_added cache_write_added audio_added image_added",
        "a part that its whole does not contain: the total shows it, or the part is far larger",
        "both",
    ),
    FlagRow(
        "cached_exceeds_prompt cache_write_exceeds_prompt cache_exceeds_prompt cache_write_1h_exceeds_cache_write"
        " audio_exceeds_prompt image_exceeds_prompt media_exceeds_prompt audio_exceeds_completion"
        " image_exceeds_completion media_exceeds_completion cached_audio_exceeds_cached cached_image_exceeds_cached"
        " cached_media_exceeds_cached cached_audio_exceeds_audio_prompt cached_image_exceeds_image_prompt",
        "a part that exceeds its whole",
        "the whole, as plain tokens; the part is ignored, and empty in the entry",
    ),
    FlagRow("total_mismatch", "a total that is not the sum of prompt and completion", "prompt and completion"),
    FlagRow("usage_invalid", "a count that is not a valid number", "the answer as if the count were not reported"),
    FlagRow("usage_conflict", "two members that state one count, and differ", "the larger that the total allows"),
    FlagRow(
        "cache_within_input",
        "Claude's cached tokens, reported only after the input (some hosts count the prompt before they read a cache)",
        "the prompt once, what was cached as cached",
    ),
    FlagRow("usage_decreased", "a later count below an earlier one", "the higher one"),
    FlagRow(
        "interim_cost",
        "at a provider whose stated cost is the price: an answer that ended before its last report (until then, some "
        "state 0)",
        "by the list; without a list, the stated cost, as the least",
    ),
    FlagRow("usage_raw_dropped", "a usage object that is too long to keep", "the counts, as reported"),
    FlagRow(
        "unread_text",
        "generated text in a member that this version does not know (such as delta.musing)",
        "the text, where an estimate is needed",
    ),
    FlagRow("cumulative", "texts that each repeat all earlier text", "each text once"),
    FlagRow(
        "unknown_event",
        "over a WebSocket, an event that this version does not know, with output or a usage",
        "an entry of its own",
    ),
    FlagRow("tool_prompt", "tokens of Google's own tools", "these tokens as prompt"),
    FlagRow("refused_unbilled", "a refusal of Claude's before any output", "nothing"),
    FlagRow("audio_unknown", "an answer without the length of its audio", "the length of the file"),
    FlagRow(
        "audio_doubtful",
        "a file of an unknown format, of very many parts, or a link",
        "an estimated length: by the file's size, or ten minutes",
    ),
    FlagRow("encoded", "a compressed answer that cannot be read", "an estimate by its size"),
    FlagRow(
        "event_too_long body_too_long",
        "an event or answer that is too long to be read at once, or has too many parts: only its outline is read",
        "the counts in the outline; the rest by its size",
    ),
    FlagRow(
        "damaged_event",
        "a message of a binary stream with a wrong checksum or without valid framing; the client got it unchanged",
        "the readable part; the rest by its size",
    ),
    FlagRow(
        "cut_body unparsable_body unparsable_event",
        "an answer or event that is incomplete or not JSON",
        "its complete parts",
    ),
    FlagRow(
        UNANSWERED,
        "in an adjustment: a provider that was asked for the usage of an estimate, and did not report it within a day",
        "the estimate",
    ),
    FlagRow(
        OTHER_TOKENIZER,
        "in an adjustment: a provider that, a day later, has not reported the counts of the model's own tokenizer",
        "the reported counts, of another tokenizer",
    ),
    FlagRow(
        TIER_DOUBTFUL,
        "in an adjustment: a price list that has changed since, and a prompt or terms of service that may be of another"
        " of its tiers than the estimate's",
        "at the prices of the estimate's tier",
    ),
    FlagRow("stream_as_json", "events under the content type of JSON", "the answer as a stream"),
)

_ROW_OF = {name: row for row in FLAG_ROWS for name in row.names.split()}


def flag_lines(entry: LedgerEntry) -> list[str]:
    """One line for each flag: `flag cumulative: texts that …; billed: each text once`."""
    return [_flag_line(name) for name in _list(EntryDetails.of(entry.details).flags)]


def unread_lines(entry: LedgerEntry) -> list[str]:
    """One line for each number or word that was reported and not read: `not read: usage.new_tokens = 17`."""
    details = EntryDetails.of(entry.details)
    return [_unread_line(path, details) for path in _list(details.unread)]


def contradiction_lines(entry: LedgerEntry) -> list[str]:
    """One line for each reported count that contradicts the answer: `refuted: 1 completion_tokens, at least 12`."""
    details = EntryDetails.of(entry.details)
    return [
        f"{doubt}: {doubts['reported']} {count} reported, {bound.replace('_', ' ')} {number} by the text"
        for doubt, found in ((REFUTED, details.refuted), (IMPLAUSIBLE, details.implausible))
        for count, doubts in (found or {}).items()
        for bound, number in doubts.items()
        if bound != "reported"
    ]


def _flag_line(name: str) -> str:
    row = _ROW_OF.get(name)  # older versions had others
    return f"flag {name}" if row is None else f"flag {name}: {row.seen}; billed: {row.billed}"


def _unread_line(path: str, details: EntryDetails) -> str:
    beside = details.beside_usage
    value = beside.get(path) if isinstance(beside, dict) else None
    if value is None:
        value = _value_in_usage(path, details.usage)
    return f"not read: {path}" if value is None or "=" in path else f"not read: {path} = {value}"


def _value_in_usage(path: str, usage: Any) -> int | float | None:
    """The number at `path` in the usage object that the entry keeps. None: not kept, or no number."""
    names = path.split(".")
    start = next((at + 1 for at, name in enumerate(names) if name in USAGE_OBJECTS), len(names))
    value = usage
    for name in names[start:]:
        value = _member(value, name)
    return value if isinstance(value, int | float) else None


def _member(holder: Any, name: str) -> Any:
    """`name` in an object, or in the objects of a list: one of these may be named by its modality."""
    if not isinstance(holder, list):
        return holder.get(name) if isinstance(holder, dict) else None
    objects = [one for one in holder if isinstance(one, dict)]
    named = (one if one.get("modality") == name else one.get(name) for one in objects)
    return next((value for value in named if value is not None), None)


def _list(found: object) -> list[str]:
    return [str(one) for one in found] if isinstance(found, list) else []
