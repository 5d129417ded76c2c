"""Lines of JSON: the same for every cut, bounded, in linear time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.wire import framing as stream_framing
from proxy.metering.wire.framing import LineFramer
from proxy.metering.wire.outline import Outline
from tests.metering.fixtures import cut_at, in_pieces
from tests.support.linear import assert_linear

BODIES = st.lists(st.sampled_from([b"{}", b"\n", b"\r\n", b" ", b"\xe2\x80\xa8", b"\r", b"12345", b"\x85"])).map(
    b"".join
)


def outlined(line: bytes, longest: int) -> bytes:
    if len(line) <= longest:
        return line
    outline = Outline()
    outline.feed(line)
    return outline.close()


def framed(pieces: list[bytes]) -> tuple[list[bytes], bytes | None, int]:
    framer = LineFramer()
    lines = [line for piece in pieces for line, name in framer.feed(piece) if name == b""]
    last = framer.close()
    assert framer.at_boundary
    return lines, last and last[0], framer.too_long


@given(BODIES, st.lists(st.integers(0, 200)), st.integers(1, 9))
def test_the_lines_are_the_same_for_every_cut(body: bytes, at: list[int], longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_framing, "LINE_BYTES_MAX", longest)
        lines = body.split(b"\n")
        kept = [outlined(line, longest) for line in lines[:-1] if line.strip() or len(line) > longest]
        last = outlined(lines[-1], longest) if lines[-1].strip() or len(lines[-1]) > longest else None
        too_long = sum(len(line) > longest for line in lines)
        for pieces in ([body], cut_at(body, at), in_pieces(body, 1)):
            assert framed(pieces) == (kept, last, too_long)


def test_a_boundary_is_between_two_lines() -> None:
    framer = LineFramer()
    told = []
    for piece in (b"", b"{}", b"\n", b"{}\n{", b"}\n"):
        framer.feed(piece)
        told.append(framer.at_boundary)
    assert told == [True, False, True, False, True]


def test_an_endless_line_takes_bounded_memory_and_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Most of the line is beyond the limit at both sizes: what is within is collected, which costs less.
    monkeypatch.setattr(stream_framing, "LINE_BYTES_MAX", stream_framing.LINE_BYTES_MAX // 50)

    def read(pieces: int) -> None:
        framer = LineFramer()
        for _ in range(pieces):
            framer.feed(b"x" * 64)
            assert len(framer._held.raw) <= stream_framing.LINE_BYTES_MAX
        assert framer.feed(b"\n{}\n") == [(b"", b""), (b"{}", b"")]
        assert framer.too_long == 1

    assert_linear(read, 14_000)
