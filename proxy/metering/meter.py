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
from proxy.metering.partial_text import TruncatedText, is_counted, is_left_out, read_cut
from proxy.metering.tally import Tally
from proxy.metering.wire.brackets import BLANKS
from proxy.metering.wire.cut import at_end, has_usage
from proxy.metering.wire.event_template import TemplateMatch, TemplateMatcher
from proxy.metering.wire.mended import mended
from proxy.metering.wire.outline import HeldText, LongText, UnreadText
from proxy.metering.wire.skim import Skim
from proxy.metering.wire.sse import LINES_MAX, Event, EventFramer, Framer

# Reading many pieces at once is a third cheaper than reading each; 32 events are under half a second of a stream.
FOLD_PIECES = 32
# Reading so many bytes takes 10 ms at most, whatever they are.
FOLD_BYTES = 16 << 10
# The largest recorded answer is 1.3 MB (inline images). A longer one is flagged.
JSON_BYTES_MAX = 16 << 20
# From so many bytes on, an answer is read as a stream if it begins as one.
_STREAM_BYTES_MIN = 512

# A stream's unfinished last event counts from this size: a smaller one has some words, which no client can read.
_HALF_EVENT_BYTES_MIN = 4096

# The largest event that is kept until the end because it may have a usage that no reader knows.
_ODD_BYTES_MAX = 4096

_may_report = re.compile(rb"sage|oken").search
_DONE = b"[DONE]"
_LONG = frozenset((LongText, UnreadText))
# Prefixes of stream events; no JSON begins so.
_EVENT = (b"data:", b"event:", b"id:", b"retry:", b":")


class JsonMeter(BodyMeter):
    """Meters one JSON answer; has no result before `close`. Keeps it if it can be parsed at once, else its outline. A
    stream of events that is labelled as JSON is read as a stream.

    `skim`: drops the contents of long lists.
    """

    __slots__ = ("_cut", "_ended", "_held", "_is_document", "_kept", "_mended", "_new_tally", "_skim", "_stream")

    def __init__(self, tally: Callable[[bool | None], Tally], skim: Skim | None = None) -> None:
        super().__init__(tally(None))
        self._skim = skim
        self._kept = HeldText(JSON_BYTES_MAX)
        self._ended = False
        self._is_document = False  # it is no stream of events; False: that is not known yet
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
            self.behind = self._stream.behind
            return
        held = self._kept
        if not (self._is_document or held.raw):
            kept = kept.lstrip(BLANKS)
        if not self._is_document and len(held.raw) + len(kept) > _STREAM_BYTES_MIN:
            kept = held.take() + kept if held.raw else kept
            if kept.startswith(_EVENT):
                self._stream = self._new_stream(kept)
                self.behind = self._stream.behind
                return
            self._is_document = True
        held.add(kept)
        self.behind = held.unread is not None and not held.unread.is_read

    def catch_up(self) -> bool:
        if self._stream is not None:
            self.behind = not self._stream.catch_up()
        elif (unread := self._kept.unread) is not None and not unread.is_read:
            unread.read_part()
            self.behind = not unread.is_read
        return not self.behind

    def end(self) -> None:
        held = self._kept
        if self._stream is not None:
            self._stream.end()
            self.behind = self._stream.behind
        elif not self._ended and held.unread is None:
            last = at_end(bytes(held.raw))
            if isinstance(last, UnreadText):
                held.take()
                held.unread = last
                self.behind = not last.is_read
        self._ended = True

    def give_up(self) -> None:
        self.end()
        if self._stream is not None:
            self._stream.give_up()
        elif self._kept.unread is not None and self.behind:
            self._kept.unread.give_up()
        self.behind = False

    def final_so_far(self, answers: int) -> Metered:
        """The result: called only at the end of the answer."""
        return self.close()

    def _result(self) -> Metered:
        if self._stream is not None:
            return self._read_events(self._stream)
        if self.bytes_seen > self.sure_bytes:
            self.end()
        held, truncated = self._kept.take(), None
        if isinstance(held, UnreadText):
            held = held.text()
        body, long = held.strip(BLANKS), isinstance(held, LongText)
        lacks, too_long = False, False
        if isinstance(held, LongText):
            lacks, too_long = held.lacks, held.lacks or held.size > JSON_BYTES_MAX
            truncated = TruncatedText()
            read = truncated.read(self.tally, held, self._read_answer)
        elif body.startswith(_EVENT):
            return self._read_events(self._new_stream(held))
        else:
            read = bool(body) and self._read_answer(body)
        flags = {"body_too_long"} if too_long else set[str]()
        if read and self._cut:
            flags.add("cut_body")
        elif self._mended or (not read and (body or long)):
            flags.add("unparsable_body")
            if not (long or read) and is_left_out(body):
                self.tally.add_truncated_bytes(len(body))
        if read and not (lacks or self._cut or self.tally.failed or is_counted(self.tally)):
            self.tally.read_unknown_text(held, counted=False)
        complete = read and not self._cut and self.tally.done and self.tally.failed is None
        if complete and truncated is not None:
            truncated.settle(self.tally)
        reports = [body] if read and not lacks and not self._cut else []
        return result_of(self.tally, complete=complete, flags=flags, reports=reports, cut=self._cut)

    def _read_answer(self, body: bytes) -> bool:
        lacks = isinstance(body, LongText) and body.lacks
        read = self.tally.read_answer(body)
        whole = None if read or isinstance(body, LongText) else mended(body)
        if whole is not None and self.tally.read_answer(whole):
            self._mended = read = True
        elif not read:
            self._cut = True
            read = read_cut(self.tally, body, self.tally.read_answer)
        elif self._held is not None and not lacks and not is_counted(self.tally):
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
        "_ended",
        "_first_report",
        "_framer",
        "_json",
        "_lacks",
        "_last",
        "_last_report",
        "_looks",
        "_matcher",
        "_members",
        "_new_tally",
        "_odd_report",
        "_pieces",
        "_raw",
        "_rest",
        "_truncated",
        "_undecided",
        "_unread",
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
        self._truncated = TruncatedText()
        self._lacks = False  # an outline lacks more than images
        self._unread: tuple[UnreadText, bytes] | None = None  # the event that is being read, and its name
        self._rest: list[Event] = []  # events after it
        self._ended = False
        self._last: Event | None = None  # the unfinished last event
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
        pieces, size = self._pieces, len(payload)
        pieces.append(payload)
        self.bytes_seen += size
        self._waiting += size
        if self._waiting >= FOLD_BYTES or len(pieces) >= FOLD_PIECES:
            self.fold()

    def fold(self) -> None:
        pieces = self._pieces
        if not pieces:
            return
        if self.behind:
            if self.is_awaited:
                return
            self._finish()
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
            if self.behind:
                self._hold(events)
                return
        template = None if read is None or events[-1][1] or self._looks else self.tally.template(read, events[-1][0])
        self._matcher = None if template is None else TemplateMatcher(template)
        self.tally.events += len(events)
        self.tally.flush()
        if self._framer.unread is not None or self._json is not None:
            self._look_behind()

    def _hold(self, events: list[Event]) -> None:
        """One of these events is read in parts: those after it wait."""
        assert self._unread is not None
        at = next(at for at, (event, _) in enumerate(events) if event is self._unread[0])
        self._rest, self._matcher = events[at + 1 :], None
        self.tally.events += at
        self.tally.flush()

    def _reading(self) -> UnreadText | None:
        """The text that is being read in parts."""
        texts = self._unread and self._unread[0], self._framer.unread, self._last and self._last[0]
        for text in texts:
            if isinstance(text, UnreadText) and not text.is_read:
                return text
        return None

    def _look_behind(self) -> None:
        is_reading = self._unread is not None or self._reading() is not None
        self.behind = is_reading or (self._json is not None and self._json.behind)

    def catch_up(self) -> bool:
        if (text := self._reading()) is not None:
            text.read_part()
        elif self._json is not None and self._json.behind:
            self._json.catch_up()
        if self._unread is not None and self._unread[0].is_read:
            (text, name), self._unread, self.behind = self._unread, None, False
            self._read_rest(text.event(), name)
        self._look_behind()
        return not self.behind

    def _read_rest(self, event: Event | None, name: bytes) -> None:
        """Read the outline of an event, and the events after it. `name`: of the event, if it has none itself."""
        rest, self._rest = self._rest, []
        if event is not None:
            self._read(event[0], event[1] or name)
            self.tally.events += 1
        for text, of_text in rest:
            self._read(text, of_text)
            if self.behind:
                self._hold(rest)
                return
        self.tally.events += len(rest)
        self.tally.flush()

    def _finish(self) -> None:
        while self.behind:
            self.catch_up()

    def end(self) -> None:
        if self._ended:
            return
        while self.behind or self._pieces:
            self.catch_up()
            self.fold()
        self._ended, last = True, self._framer.close()
        if last is not None:
            self._last = last if isinstance(last[0], LongText) else (at_end(last[0]), last[1])
        if self._json is not None:
            self._json.end()
        if last is not None or self._json is not None:
            self._look_behind()

    def give_up(self) -> None:
        self._skip()
        self.end()
        self._skip()

    def _skip(self) -> None:
        while self.behind:
            if (text := self._reading()) is not None:
                text.give_up()
            elif self._json is not None:
                self._json.give_up()
            self.catch_up()

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
        if self.behind:
            if self.is_awaited:
                return None
            self._finish()
        final = self.tally.usage_final and (answers == 1 or self.tally.usage_alone)
        return self._result_so_far() if final else None

    def _result(self) -> Metered:
        self.end()
        if self.behind:
            self._finish()
        last = self._last
        if last is not None and isinstance(last[0], UnreadText):
            last = last[0].event()
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
        too_long = {"event_too_long"} if framer.too_long or self._lacks else set[str]()
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
        if type(event) in _LONG:
            self._read_long(event, name)
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

    def _read_long(self, event: bytes, name: bytes) -> None:
        if isinstance(event, UnreadText):
            self._unread, self.behind = (event, name), True
            return
        assert isinstance(event, LongText)
        output = self.tally.output_events
        good = self._truncated.read(self.tally, event, lambda outline: self.tally.read(outline, name) is not None)
        if good and not event.lacks:
            self._look(event, 0, counted=self.tally.output_events > output)
        self._lacks = self._lacks or event.lacks
        if self.tally.usage_raw is self._raw:
            return
        if event.lacks:
            self._raw, self.tally.output_at_usage = self.tally.usage_raw, self.tally.output_events
        else:
            self._keep_report(event)

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
        elif 0 < event.count(b"\n") <= LINES_MAX:  # several data lines, not one document: blank lines are missing
            for line in event.split(b"\n"):
                self._read(line, name)
        elif event.strip():
            self.tally.flags.add("unparsable_event")
            if is_left_out(event):
                self.tally.add_truncated_bytes(len(event))

    def _read_unfinished(self, event: bytes, name: bytes) -> None:
        # A complete event counts, and so does the received part of a large one. Half an event sets no flag.
        read = partial(self._read_end, name=name)
        if isinstance(event, LongText):
            self._lacks = self._lacks or event.lacks
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
        return read_cut(self.tally, event, lambda whole: self.tally.read(whole, name) is not None)

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
