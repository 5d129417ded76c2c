"""Streams to relay, and every way of cutting and framing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from proxy.demo.script import AS_SENT, Cut, Fin, Raw, Script, Send, wire_steps
from proxy.demo.shapes import LANGUAGES, GeneratedAnswer, stream, words

COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")
# Characters of one to four bytes near the beginning, so that even a short answer can be cut inside each.
TEXT = "Wie viel fließt über das Wehr? 水門は開いた 🌊 Ω \u2028 and on it goes, drop by drop, day after day. "
# What differs between two runs of the same exchange, however it was relayed.
_OF_THE_RUN = {"entry_id", "exchange_id", "model", "upstream_model", "started_at", "first_token_ms", "duration_ms"}


def told(language: str, tokens: int = 12, *, reasoning: int = 0, prompt_tokens: int = 21) -> list[bytes]:
    """The events of one answer in the language of a provider, usage asked for, `[DONE]` last."""
    answer = GeneratedAnswer(
        "chatcmpl-w1", 1_790_000_000, "weir-1", prompt_tokens, words(tokens, TEXT), reasoning=words(reasoning)
    )  # fmt: skip
    return [event.wire for event in stream(LANGUAGES[language], answer, usage_asked=True)]


def inside_utf8(body: bytes) -> tuple[int, ...]:
    """Every offset that parts a character."""
    return tuple(at for at in range(1, len(body)) if body[at] & 0xC0 == 0x80)


# Of `cuttings`: each framing whole or per event and at random; and those that part every byte.
FEW_CUTTINGS = frozenset((
    "whole", "per event", "inside characters", "random wire 0", "extensions", "trailers", "length, per event",
    "length, random", "close, inside characters", "close, whole",
))  # fmt: skip
MORE_CUTTINGS = FEW_CUTTINGS | {"per byte", "wire per byte"}


def cuttings(events: Sequence[bytes]) -> Iterator[tuple[str, Script]]:
    """The same stream, cut and framed in every way there is: name → script."""
    steps = tuple(map(Send, events))
    inside = Cut(at=inside_utf8(b"".join(events)))

    def script(chunking: Cut = AS_SENT, wire: Cut = AS_SENT, pause_ms: float | None = 0, **more: Any) -> Script:
        return Script(steps=steps, chunking=chunking, wire=wire, wire_pause_ms=pause_ms, **more)

    yield "whole", script(Cut(whole=True), Cut(whole=True))
    yield "per event", script()
    yield "per byte", script(Cut(size=1))
    yield "inside characters", script(inside)
    for seed in range(6):
        yield f"random chunks {seed}", script(Cut(seed=seed))
        yield f"random wire {seed}", script(wire=Cut(seed=seed, size=9 * 4**seed), chunking=Cut(seed=seed))
    yield "wire per byte", script(wire=Cut(size=1))
    yield "extensions", script(chunk_extension=";weir=1")
    yield "trailers", script(trailers=(("X-Checksum", "1"),), wire=Cut(size=5))
    yield "length, whole", script(wire=Cut(whole=True), framing="length")
    yield "length, per event", script(framing="length")
    yield "length, per byte", script(wire=Cut(size=1), framing="length")
    yield "length, random", script(wire=Cut(seed=3), framing="length")
    yield "close, per event", script(framing="close", http="1.0")
    yield "close, inside characters", script(inside, framing="close")
    yield "close, whole", script(wire=Cut(whole=True), framing="close")


def wire_of(script: Script) -> bytes:
    """Every byte of an answer, head and framing included."""
    return b"".join(step.body for step in wire_steps(script) if isinstance(step, Raw))


def cut_off(wire: bytes, at: int, *end: Any) -> Script:
    """The first `at` bytes of an answer, and then `end` (a FIN if nothing else is said)."""
    return Script(steps=(Raw(wire[:at]), *(end or (Fin(),))), framing="raw")


def without_run(entry: dict[str, Any]) -> dict[str, Any]:
    """What must be the same in the entries of the same stream, however it was relayed."""
    return {name: value for name, value in entry.items() if name not in _OF_THE_RUN}


def counts(entry: dict[str, Any]) -> tuple[int | None, ...]:
    """The token counts of an entry."""
    return tuple(entry[name] for name in COUNTS)
