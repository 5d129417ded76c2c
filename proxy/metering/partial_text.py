"""Counts what can be read of texts that are not whole: cut off, or too long to be read.

Invariant: a text that was received is never free. What its outline lacks is counted by its bytes, unless the provider
reports a count.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.metering.tally import Tally
from proxy.metering.wire.cut import completed, has_usage
from proxy.metering.wire.json_reader import ENTRIES_MAX
from proxy.metering.wire.outline import LongText
from proxy.metering.wire.parts import is_crowded


def read_cut(tally: Tally, text: bytes, read: Callable[[bytes], bool]) -> bool:
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


class TruncatedText:
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
        if is_counted(tally) or tally.failed is not None:
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
        if self._unplaced and tally.evidence.empty and not is_counted(tally):
            tally.add_truncated_bytes(self._unplaced)


def is_left_out(text: bytes) -> bool:
    """Whether an unreadable text may be one that would take too long to read: then it counts by its size. An entry has
    three marks at least."""
    return is_crowded(text, 3 * ENTRIES_MAX) and text.startswith(b"{")


def is_counted(tally: Tally) -> bool:
    """Whether the provider has reported the completion."""
    return tally.usage is not None and tally.usage.completion_tokens is not None
