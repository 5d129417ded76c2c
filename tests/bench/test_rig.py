"""The rig is tested first: a figure means nothing when the client misses a byte or forgives a wrong one."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.load import Load, Rig, RigError, Target, build, compiler
from tests.bench.rows import Against, Row, compared, is_met, rows, table
from tests.bench.systems import family

pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(compiler() is None, reason="no C compiler: the bench rig cannot be built"),
]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return build(tmp_path_factory.mktemp("rig"), max(os.sched_getaffinity(0)))


@pytest.fixture(scope="module")
def provider(rig: Rig) -> Iterator[Target]:
    with rig.provided() as port:
        yield Target(port, ("Authorization: Bearer sk-nobody",))


@pytest.fixture
def impostor() -> Iterator["Impostor"]:
    server = Impostor()
    yield server
    server.listener.close()
    server.thread.join(5)


class Impostor:
    """Answers one request with bytes it was given, then hangs up."""

    def __init__(self) -> None:
        self.answer = b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(5)
        self.target = Target(self.listener.getsockname()[1])
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(self.answer)


def recorded(provider: Target, model: str) -> bytes:
    """The provider's own answer, head and all, to a stream of that script."""
    body = b'{"model": "%s", "stream": true}' % model.encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", provider.port), timeout=5) as connection:
        connection.sendall(head + body)
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += connection.recv(65536)
    return answer


def test_streams_are_whole_and_timed(rig: Rig, provider: Target) -> None:
    load = rig.streams(provider, streams=20, events=25, pace_ms=10)
    assert 0 < load.units <= 20 * 25
    assert 0 < load.p50_us <= load.p99_us < 10e6
    assert load.cpu_ns == 0  # nobody was watched


def test_bursts_are_whole(rig: Rig, provider: Target) -> None:
    assert rig.streams(provider, streams=10, events=160, pace_ms=10, burst=16).units > 160


def test_streams_that_hardly_ran_together_are_not_measured(
    rig: Rig, provider: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = Load(units=10, seconds=0.09, cpu_ns=0, p50_us=1, p99_us=2)
    monkeypatch.setattr(Rig, "_load", lambda *_: brief)
    with pytest.raises(RigError, match=r"0\.09 s of 0\.20 s"):
        rig.streams(provider, streams=2, events=20, pace_ms=10)


def test_json_requests_are_whole_and_their_cpu_time_is_read(rig: Rig, provider: Target) -> None:
    watched = Target(provider.port, provider.headers, family(os.getpid())[1:])
    load = rig.requests(watched, requests=200, connections=4)
    assert load.units == 200
    assert load.cpu_ns > 0


def test_silent_and_unread_streams_are_held(rig: Rig, provider: Target) -> None:
    with rig.held(provider, 50):
        pass
    with rig.held(provider, 1, deaf=True):
        pass


def test_an_honest_copy_passes(rig: Rig, provider: Target, impostor: Impostor) -> None:
    impostor.answer = recorded(provider, "bench-p0-n2-b1")
    assert rig.requests(impostor.target, requests=1, stream=True).units == 1


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        (b' 00000001"}', b' 00000002"}', "a piece that is not the script's"),
        (
            b'"logprobs":null,"finish_reason":null',
            b'"logprobs":null,"finish_reason":nulL',
            "a piece that is not",
        ),
        (b"\r\n0\r\n\r\n", b"\r\n", "closed before the end"),
        (b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", b"0\r\n\r\n", "an end before the end of the script"),
        (b"HTTP/1.1 200", b"HTTP/1.1 502", "a status that is not 200"),
    ],
)
def test_one_wrong_byte_is_an_error(
    rig: Rig, provider: Target, impostor: Impostor, good: bytes, bad: bytes, reason: str
) -> None:
    answer = recorded(provider, "bench-p0-n2-b1")
    impostor.answer = answer.replace(good, bad)
    assert impostor.answer != answer
    with pytest.raises(RigError, match=reason):
        rig.requests(impostor.target, requests=1, stream=True)


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RigError, match="no C compiler"):
        build(tmp_path, 0)


def test_ratios_are_taken_within_a_round() -> None:
    row = Row("cost", "", "µs", Against.RATIO, 1.5)
    rounds = [
        {("nginx", "cost"): 10.0, ("tokenweir", "cost"): 14.0},
        {("nginx", "cost"): 100.0, ("tokenweir", "cost"): 120.0},
        {("nginx", "cost"): 1.0},
    ]
    assert compared(rounds, "tokenweir", row) == pytest.approx(1.3)
    assert is_met(row, 1.3) == "yes"
    assert is_met(row, 1.6) == "no"
    assert is_met(row, compared(rounds, "aiohttp", row)) == "–"


def test_a_limit_may_be_held_against_g1_or_against_another_figure() -> None:
    row, late = Row("cost", "", "µs", Against.G1, 1.4), Row("first_byte_p99_ms", "", "ms", Against.MEDIAN, 3)
    rounds = [
        {("g1", "cost"): 10.0, ("tokenweir", "cost"): 13.0, ("nginx", "cost"): 1.0},
        {("tokenweir", "first_byte_ms"): 0.5, ("tokenweir", "first_byte_p99_ms"): 2.0},
    ]
    assert compared(rounds, "tokenweir", row) == pytest.approx(1.3)
    assert compared(rounds, "tokenweir", late) == pytest.approx(4.0)
    assert (is_met(row, 1.3), is_met(late, 4.0)) == ("yes", "no")


def test_the_table_has_a_line_for_each_row() -> None:
    shown = rows(1000, 50, 20, 40)
    assert len(table([{("nginx", "json_cpu_us"): 17.0}], shown).splitlines()) == 2 + len(shown)
