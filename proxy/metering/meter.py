"""Bytes of an answer → `Metered`. Sans-IO: a meter is fed, and never fetches, waits or reads a clock.

Invariants: a meter never raises for provider data. Its result is the same for every way of cutting the bytes.
Unreadable data sets a flag. Failures are reported by codes of this proxy, never by provider text. Of texts that are too
long to keep, the outline is read (`wire.outline`); generated text that the outline lacks is counted by its bytes, and
so is unreadable data. Of a text that was cut off, the whole members are read (`wire.cut`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import structs

from proxy.metering.held_text import AnswerText
from proxy.metering.metered import BodyMeter, Metered, result_of
from proxy.metering.tally import Tally
from proxy.metering.wire.brackets import BLANKS
from proxy.metering.wire.cut import completed, has_usage
from proxy.metering.wire.event_template import TemplateMatch, TemplateMatcher
from proxy.metering.wire.mended import mended
from proxy.metering.wire.outline import HeldText, LongText
from proxy.metering.wire.skim import Skim
from proxy.metering.wire.sse import EventFramer, Framer

# Reading many pieces at once is a third cheaper than reading each; 32 events are under half a second of a stream.
FOLD_PIECES = 32
# Keeps the bytes of a stream that wait for `fold` below the relay's own buffer.
FOLD_BYTES = 64 << 10
# The largest recorded answer is 1.3 MB (inline images). Of a longer one the outline is kept.
JSON_BYTES_MAX = 16 << 20

# A stream's unfinished last event counts from this size: a smaller one has some words, which no client can read.
_HALF_EVENT_BYTES_MIN = 4096

# The largest event that is kept until the end because it may have a usage that no reader knows.
_ODD_BYTES_MAX = 4096

_may_report = re.compile(rb"sage|oken").search
_DONE = b"[DONE]"
# Prefixes of stream events; no JSON begins so.
_EVENT = (b"data:", b"event:", b"id:", b"retry:", b":")


def _read_cut(tally: Tally, text: bytes, read: Callable[[bytes], bool]) -> bool:
    """Read the whole members of a text that was cut off: output and whole usage, not its end. False: there are none."""
    whole = completed(text)
    if whole is None:
        return False
    before = tally.done, tally.finish_reason
    usage = tally.usage, tally.usage_raw, tally.completion_so_far
    good = read(whole)
    tally.done, tally.finish_reason = before
    if not has_usage(whole):
        tally.usage, tally.usage_raw, tally.completion_so_far = usage
    return good


class _TruncatedText:
    """Counts the generated text that outlines of long events or answers lack."""

    __slots__ = ("_unplaced",)

    def __init__(self) -> None:
        self._unplaced = 0

    def read(self, tally: Tally, text: LongText, read: Callable[[bytes], bool]) -> bool:
        """Read the outline. Its text counts only if the dialect counts the rest of it: a repetition does not."""
        tally.flush()
        before = tally.evidence.chars
        good = bool(text) and read(text)
        tally.flush()
        if _is_counted(tally) or tally.failed is not None:
            return good
        if not good:
            tally.add_truncated_bytes(text.dropped or text.size)
        elif tally.evidence.chars > before:
            tally.add_truncated_bytes(text.dropped)
        else:
            self._unplaced = max(self._unplaced, text.dropped)
        return good

    def settle(self, tally: Tally) -> None:
        """The whole answer was received. If it had no output, the outlines lack the output."""
        if self._unplaced and tally.evidence.empty and not _is_counted(tally):
            tally.add_truncated_bytes(self._unplaced)


def _is_counted(tally: Tally) -> bool:
    return tally.usage is not None and tally.usage.completion_tokens is not None


class JsonMeter(BodyMeter):
    """Meters one JSON answer; has no result before `close`. Buffers up to JSON_BYTES_MAX; of a longer answer, its
    outline. A stream of events that is labelled as JSON is read as a stream.

    `skim`: drops the contents of long lists.
    """

    __slots__ = ("_cut", "_held", "_kept", "_mended", "_new_tally", "_skim", "_stream")

    def __init__(self, tally: Callable[[bool | None], Tally], skim: Skim | None = None) -> None:
        super().__init__(tally(None))
        self._skim = skim
        self._kept = HeldText(JSON_BYTES_MAX)
        self._cut = False  # it is not whole
        self._mended = False  # a part of it is unreadable
        self._stream: StreamMeter | None = None  # of a long stream of events
        self._held: AnswerText | None = None
        self._new_tally = tally

    def hold(self, held: AnswerText) -> None:
        """Also hold the text of the answer, if it does not report its usage. Call it before `feed`."""
        self._held = held

    def feed(self, payload: bytes) -> None:
        self.bytes_seen += len(payload)
        kept = payload if self._skim is None else self._skim.feed(payload)
        if self._stream is not None:
            self._stream.feed(kept)
            return
        held = self._kept
        if not held.too_long and len(held.raw) + len(kept) > JSON_BYTES_MAX:
            head = bytes(held.raw) + kept
            if head.lstrip(BLANKS).startswith(_EVENT):
                self._stream = self._new_stream(head)
                held.take()
                return
        held.add(kept)

    def final_so_far(self, answers: int) -> Metered:
        """The result: called only at the end of the answer."""
        return self.close()

    def _result(self) -> Metered:
        if self._stream is not None:
            return self._read_events(self._stream)
        held = self._kept.take()
        body, truncated, long = held.strip(BLANKS), _TruncatedText(), isinstance(held, LongText)
        if isinstance(held, LongText):
            read = truncated.read(self.tally, held, self._read_answer)
        elif body.startswith(_EVENT):
            return self._read_events(self._new_stream(held))
        else:
            read = bool(body) and self._read_answer(body)
        flags = {"body_too_long"} if long else set[str]()
        if read and self._cut:
            flags.add("cut_body")
        elif self._mended or (not read and (body or long)):
            flags.add("unparsable_body")
        if read and not (long or self._cut or self.tally.failed or _is_counted(self.tally)):
            self.tally.read_unknown_text(body, counted=False)
        complete = read and not self._cut and self.tally.done and self.tally.failed is None
        if complete:
            truncated.settle(self.tally)
        reports = [body] if read and not long and not self._cut else []
        return result_of(self.tally, complete=complete, flags=flags, reports=reports, cut=self._cut)

    def _read_answer(self, body: bytes) -> bool:
        read = self.tally.read_answer(body)
        whole = None if read or isinstance(body, LongText) else mended(body)
        if whole is not None and self.tally.read_answer(whole):
            self._mended = read = True
        elif not read:
            self._cut = True
            read = _read_cut(self.tally, body, self.tally.read_answer)
        elif self._held is not None and not isinstance(body, LongText) and not _is_counted(self.tally):
            # Most report it: only these are read twice.
            self.tally = self._new_tally(None)
            self.tally.hold(self._held)
            self.tally.read_answer(body)
        return read

    def _new_stream(self, head: bytes) -> StreamMeter:
        stream = StreamMeter(self._new_tally, EventFramer())
        stream.feed(head)
        return stream

    def _read_events(self, stream: StreamMeter) -> Metered:
        metered = stream.close()
        self.tally = stream.tally
        return structs.replace(metered, flags=tuple(sorted({*metered.flags, "stream_as_json"})))


class StreamMeter(BodyMeter):
    """Meters one stream of events.

    `cumulative`: whether each text of the stream repeats all before it; None: detected from the stream.
    """

    __slots__ = (
        "_cut",
        "_first_report",
        "_framer",
        "_json",
        "_last_report",
        "_looks",
        "_matcher",
        "_members",
        "_new_tally",
        "_odd_report",
        "_pieces",
        "_raw",
        "_truncated",
        "_undecided",
        "_waiting",
    )  # fmt: skip

    def __init__(self, tally: Callable[[bool | None], Tally], framer: Framer, cumulative: bool | None = None) -> None:
        super().__init__(tally(cumulative))
        self._framer = framer
        self._new_tally = tally
        self._pieces: list[bytes] = []
        self._waiting = 0  # bytes in _pieces
        self._undecided = True  # only blanks so far: it may be one JSON document
        self._json: JsonMeter | None = None
        self._matcher: TemplateMatcher | None = None  # of the last event's template
        self._truncated = _TruncatedText()
        self._members = 0  # of the event with the most whose members are known
        self._looks = False  # events have unknown text and text that is read
        self._cut = False  # the stream ended within an event
        self._raw: dict[str, Any] | None = None  # the usage object of the last report
        self._first_report: bytes | None = None  # events with usage
        self._last_report: bytes | None = None
        self._odd_report: bytes | None = None  # an event that may have a usage that no reader knows

    def feed(self, payload: bytes) -> None:
        """Buffer more bytes, and read them every FOLD_PIECES pieces or FOLD_BYTES bytes."""
        assert self._metered is None, "fed after close"
        self._pieces.append(payload)
        self.bytes_seen += len(payload)
        self._waiting += len(payload)
        if len(self._pieces) >= FOLD_PIECES or self._waiting >= FOLD_BYTES:
            self.fold()

    def fold(self) -> None:
        pieces = self._pieces
        if not pieces:
            return
        payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._waiting = 0
        match = None if self.matcher is None else self.matcher.read(payload)
        if match is not None:
            self.tally.read_match(match)
            return
        events = self._framer.feed(payload)
        if self.tally.events == 0 and (self._undecided or self._json is not None):
            self._keep_json(payload, is_stream=bool(events))
        read = None
        for event, name in events:
            read = self._read(event, name)
        template = None if read is None or events[-1][1] or self._looks else self.tally.template(read, events[-1][0])
        self._matcher = None if template is None else TemplateMatcher(template)
        self.tally.events += len(events)
        self.tally.flush()

    @property
    def matcher(self) -> TemplateMatcher | None:
        """Matches the next events if they differ from the last one only in their text. None if the last event gives no
        template, within an event, and while fed bytes wait for `fold`."""
        return self._matcher if self._framer.at_boundary and not self._pieces else None

    def take(self, match: TemplateMatch) -> None:
        self.bytes_seen += match.size
        self.tally.read_match(match)

    def final_so_far(self, answers: int) -> Metered | None:
        self.fold()
        final = self.tally.usage_final and (answers == 1 or self.tally.usage_alone)
        return self._result_so_far() if final else None

    def _result(self) -> Metered:
        self.fold()
        last = self._framer.close()
        if last is not None:
            self._read_unfinished(*last)
        metered = self._result_so_far()
        self._json = None
        return metered

    @property
    def done(self) -> bool:
        return self.tally.done

    @property
    def at_boundary(self) -> bool:
        return self._framer.at_boundary

    @property
    def flags(self) -> set[str]:
        framer = self._framer
        too_long = {"event_too_long"} if framer.too_long else set[str]()
        return self.tally.flags | too_long | ({"damaged_event"} if framer.damaged else set())

    def _keep_json(self, payload: bytes, *, is_stream: bool) -> None:
        if self._undecided and (head := payload.lstrip(BLANKS)):
            self._undecided = False
            self._json = JsonMeter(self._new_tally) if head.startswith(b"{") else None
        if is_stream:
            self._json = None
        if self._json is not None:
            self._json.feed(payload)

    def _read(self, event: bytes, name: bytes) -> object | None:
        if event == _DONE:  # no JSON: found without reading it as such
            self.tally.done = True
            return None
        if type(event) is LongText:
            self._truncated.read(self.tally, event, lambda outline: self.tally.read(outline, name) is not None)
            if self.tally.usage_raw is not self._raw:
                self._raw, self.tally.output_at_usage = self.tally.usage_raw, self.tally.output_events
            return None
        evidence = self.tally.evidence
        before = evidence.text_events + evidence.tool_events
        read = self.tally.read(event, name)
        if read is None:
            self._read_odd(event, name)
            return None
        counted = evidence.text_events + evidence.tool_events > before
        members = event.count(b'":') - event.count(b'\\":')  # in texts, there is a backslash before a quote
        if not counted or members > self._members or self._looks:
            self._look(event, members, counted=counted)
        if self.tally.usage_raw is not self._raw:
            self._keep_report(event)
        return read

    def _look(self, event: bytes, members: int, *, counted: bool) -> None:
        """Look for unread text: in events without output, and in those with more members than before."""
        if len(event) <= _ODD_BYTES_MAX and (_may_report(event) if self._last_report is None else has_usage(event)):
            self._odd_report = event
        if self.tally.failed is not None:
            return
        has_unknown_text = self.tally.read_unknown_text(event, counted=counted)
        if has_unknown_text and counted:
            self._looks = True
        elif counted:
            self._members = max(self._members, members)

    def _keep_report(self, event: bytes) -> None:
        self._raw, self._last_report = self.tally.usage_raw, event
        self._first_report = self._first_report or event
        self.tally.output_at_usage = self.tally.output_events

    def _read_odd(self, event: bytes, name: bytes) -> None:
        if event.strip() == _DONE:  # OpenAI's last event, which gateways append in every dialect
            self.tally.done = True
        elif name == b"error":
            self.tally.fail("error_event")
        elif b"\n" in event:  # several data lines, not one document: events with a missing blank line
            for line in event.split(b"\n"):
                self._read(line, name)
        elif event.strip():
            self.tally.flags.add("unparsable_event")

    def _read_unfinished(self, event: bytes, name: bytes) -> None:
        # A complete event counts, and so does the received part of a large one. Half an event sets no flag.
        read = partial(self._read_end, name=name)
        if type(event) is LongText:
            self._truncated.read(self.tally, event, read)
        elif event.strip() == _DONE:
            self.tally.done = True
        elif event.strip():
            read(event)

    def _read_end(self, event: bytes, name: bytes) -> bool:
        if self.tally.read(event, name) is not None:
            if self.tally.usage_raw is not self._raw and type(event) is not LongText:
                self._keep_report(event)
            return True
        self._cut = True
        if len(event) < _HALF_EVENT_BYTES_MIN and type(event) is not LongText:
            return False
        return _read_cut(self.tally, event, lambda whole: self.tally.read(whole, name) is not None)

    def _result_so_far(self) -> Metered:
        flags = self.flags
        if self._json is not None and self.tally.events == 0:
            answer = self._json.close()
            if "unparsable_body" not in answer.flags:
                return answer
            flags |= set(answer.flags)
        complete = self.done or self.tally.finish_reason is not None
        if complete:
            self._truncated.settle(self.tally)
        odd = self._odd_report
        if odd is not None and self._last_report is not None and not has_usage(odd):
            odd = None  # a message, say: it was kept while no usage was known
        reports = {event: None for event in (self._first_report, self._last_report, odd) if event}
        return result_of(
            self.tally, complete=complete, flags=flags, reports=[*reports], cut=self._cut,
            behind=self.tally.running.behind,
        )  # fmt: skip
