"""A script comes down to exactly the bytes and waits it names, however it is cut."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.demo.script import (
    Cut,
    End,
    Fin,
    Raw,
    Reset,
    Script,
    Send,
    Shape,
    Stall,
    Trickle,
    Wait,
    WireStep,
    wire_steps,
)

BODIES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8)
CUTS = st.one_of(
    st.just(Cut()),
    st.just(Cut(whole=True)),
    st.builds(Cut, size=st.integers(1, 50)),
    st.builds(Cut, at=st.lists(st.integers(0, 400), max_size=6).map(tuple)),
    st.builds(Cut, seed=st.integers(), size=st.integers(1, 30)),
)


def writes(steps: list[WireStep]) -> list[bytes]:
    return [step.body for step in steps if isinstance(step, Raw)]


def unchunked(framed: bytes) -> tuple[bytes, list[int]]:
    body = b""
    sizes: list[int] = []
    while True:
        size_line, _, framed = framed.partition(b"\r\n")
        size = int(size_line.split(b";")[0], 16)
        if not size:
            return body, sizes
        sizes.append(size)
        body, end, framed = body + framed[:size], framed[size : size + 2], framed[size + 2 :]
        assert end == b"\r\n"


@settings(deadline=None)
@given(BODIES, CUTS, CUTS)
def test_no_cut_changes_a_byte_of_the_body(bodies: list[bytes], chunking: Cut, wire: Cut) -> None:
    script = Script(steps=tuple(map(Send, bodies)), chunking=chunking, wire=wire)
    head, _, framed = b"".join(writes(wire_steps(script))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    body, sizes = unchunked(framed)
    assert body == b"".join(bodies)
    if chunking == Cut():
        assert sizes == [len(part) for part in bodies]


@settings(deadline=None)
@given(BODIES, CUTS)
def test_wire_cuts_change_no_byte_at_all_and_lose_no_token(bodies: list[bytes], wire: Cut) -> None:
    steps = tuple(Send(part, tokens=index) for index, part in enumerate(bodies))
    plain, cut = (wire_steps(Script(steps=steps, wire=how)) for how in (Cut(), wire))
    assert b"".join(writes(plain)) == b"".join(writes(cut))
    counted = sum(step.tokens for step in cut if isinstance(step, Raw))
    assert counted == sum(range(len(bodies)))


def test_cuts_fall_where_they_are_said_to() -> None:
    script = Script(steps=(Send(b"abcdef"), Send(b"ghij")), framing="raw", wire=Cut(at=(1, 4, 8)))
    assert writes(wire_steps(script)) == [b"a", b"bcd", b"efgh", b"ij"]
    script = Script(steps=(Send(b"abcdef"), Wait(5), Send(b"ghij")), framing="raw", wire=Cut(size=4))
    assert wire_steps(script)[:5] == [Raw(b"abcd"), Raw(b"ef"), Wait(5), Raw(b"ghij"), Fin(complete=True)]


def test_random_cuts_repeat_with_their_seed_only() -> None:
    def cut(seed: int) -> list[bytes]:
        return writes(wire_steps(Script(steps=(Send(b"x" * 2000),), wire=Cut(seed=seed))))

    assert cut(1) == cut(1) != cut(2)
    assert max(map(len, cut(1))) <= 64


def test_extensions_trailers_and_repeats() -> None:
    script = Script(steps=(Send(b"ab", times=2),), chunk_extension=";x=1", trailers=(("X-Sum", "7"),))
    assert b"".join(writes(wire_steps(script))).endswith(b"\r\n\r\n4;x=1\r\nabab\r\n0;x=1\r\nX-Sum: 7\r\n\r\n")


def test_a_trickle_is_small_pieces_with_waits() -> None:
    steps = wire_steps(Script(steps=(Trickle(b"abc", size=2, ms=9),), framing="close", http="1.0"))
    assert steps[1:] == [Raw(b"ab"), Wait(9), Raw(b"c"), Wait(9), Fin(complete=True)]
    assert writes(steps)[0].startswith(b"HTTP/1.0 200 OK\r\n")


@pytest.mark.parametrize("ending", [Reset(), Fin(), Stall()])
def test_what_breaks_off_gets_no_last_chunk(ending: Reset | Fin | Stall) -> None:
    steps = wire_steps(Script(steps=(Send(b"abc"), ending)))
    assert steps[1:] == [Raw(b"3\r\nabc\r\n"), ending]


def test_length_is_true_unless_said_otherwise() -> None:
    true, lie = (Script(steps=(Send(b"abc"),), framing="length", declared_length=n) for n in (None, 9))
    assert b"Content-Length: 3\r\n" in writes(wire_steps(true))[0]
    assert b"Content-Length: 9\r\n" in writes(wire_steps(lie))[0]
    assert true.keeps_alive
    assert not lie.keeps_alive


def test_gzip_can_be_unpacked_piece_by_piece() -> None:
    first, second = writes(wire_steps(Script(steps=(Send(b"one"), Send(b"two")), framing="raw", gzip=True)))[:2]
    unpacker = zlib.decompressobj(wbits=31)
    assert unpacker.decompress(first) == b"one"
    assert unpacker.decompress(second) == b"two"


def test_a_prelude_and_a_delay_come_before_the_head() -> None:
    steps = wire_steps(Script(steps=(End(),), prelude=b"junk\r\n", delay_ms=3))
    assert steps[0] == Wait(3)
    assert writes(steps)[0].startswith(b"junk\r\nHTTP/1.1 ")


@pytest.mark.parametrize(
    "plan",
    [Shape("electron", tokens=3), Script(steps=(Send(b"\xff\x00"), Wait(1), Stall()), wire=Cut(at=(1, 2)))],
)
def test_a_plan_travels_as_json(plan: Script | Shape) -> None:
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Script | Shape) == plan


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"kind":"script","steps":[{"do":"dance"}]}',
        b'{"kind":"script","steps":[{"do":"wait","ms":-1}]}',
        b'{"kind":"shape","language":"klingon"}',
        b'{"kind":"shape","language":"tera","tokens":0}',
        b'{"kind":"shape","language":"tera","tempo":3}',
    ],
)
def test_nonsense_is_refused(wrong: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(wrong, type=Script | Shape)
