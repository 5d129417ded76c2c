"""A client that leaves in mid-stream, and how far the provider had got.

Law: the answer is paced, and far longer than what is read: the leave always comes in the middle of it.
"""

from __future__ import annotations

from proxy.demo.script import Shape
from tests.conformance.clients import PythonClient
from tests.conformance.stand import Stand

PACE_MS = 15


def leave_after(stand: Stand, python: PythonClient, model: str, *, texts: int) -> None:
    """Ask for a stream, read so many texts of it, and close."""
    read = 0
    with python.at(stand).chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Tell me about the weir."}], stream=True
    ) as stream:
        for chunk in stream:
            read += bool(chunk.choices[0].delta.content)
            if read >= texts:
                break


def endless(language: str, tokens: int = 400) -> Shape:
    """An answer of several seconds."""
    return Shape(language, tokens=tokens, pace_ms=PACE_MS)  # type: ignore[arg-type]


def near(estimated: int, generated: int) -> bool:
    """An estimate of plain text is never off by as much as a factor of two."""
    return generated / 2 < estimated < generated * 2
