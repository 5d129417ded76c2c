"""The fixtures of the four systems, as the scripted provider plays them and as their truth has it.

Law: expectations come from the fixture's own files and from plain arithmetic; nothing of the product is asked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from proxy.demo.script import AS_SENT, AnyStep, Cut, Fin, Reset, Script, Send, Wait
from tests.support import sse
from tests.support.tokenweir import PRICE

FOLDER = Path(__file__).parent / "providers"
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")
# A reset overtakes what the other side has not read yet: it must have had the time to, on a loaded machine too.
BEFORE_RESET_MS = 200


@dataclass(frozen=True, slots=True)
class Fixture:
    """One recorded shape and the truth about it."""

    system: str
    name: str
    wire: bytes
    truth: dict[str, Any]

    @property
    def streamed(self) -> bool:
        return bool(self.truth["streamed"])

    @property
    def tells_usage_apart(self) -> bool:
        """The provider sends the extra usage event: what arrives depends on what the client asked for."""
        return bool(self.truth["strip_usage_event"])

    @property
    def breaks_off(self) -> bool:
        """The connection ends before the answer does."""
        return "ends" in self.truth

    @property
    def text(self) -> str:
        return str(self.truth["text"])

    @property
    def response_id(self) -> str:
        first = sse.chunks(self.wire)[0] if self.streamed else json.loads(self.wire)
        return str(first["id"])

    def request(self, model: str, *, usage_asked: bool = False) -> dict[str, Any]:
        """The request that this is the answer to."""
        options = {"stream_options": {"include_usage": True}} if usage_asked else {}
        messages = [{"role": "user", "content": "How does the water stand?"}]
        body = {"model": model, "messages": messages, "stream": self.streamed, **options}
        return body | self.truth.get("request", {})

    def script(self, chunking: Cut = AS_SENT) -> Script:
        """The provider's side, its body parted into HTTP chunks as said."""
        if not self.streamed:
            typed = (("Content-Type", "application/json"),)
            return Script(steps=(Send(self.wire),), headers=typed, framing="length")
        steps: list[AnyStep] = [Send(event.wire) for event in sse.events(self.wire)]
        match self.truth.get("ends"):
            case "reset":
                steps += [Wait(BEFORE_RESET_MS), Reset()]
            case "fin":
                steps.append(Fin())
        return Script(steps=tuple(steps), chunking=chunking)

    def body(self, *, usage_asked: bool) -> bytes:
        """Exactly what the client must get."""
        return self.wire if usage_asked or not self.tells_usage_apart else sse.without_usage_event(self.wire)

    def events(self, *, usage_asked: bool) -> int:
        return int(self.truth["events"]) - (self.tells_usage_apart and not usage_asked)


def fixtures() -> list[Fixture]:
    truths = sorted(FOLDER.glob("*/*.json"))
    return [_fixture(path, json.loads(path.read_text())) for path in truths]


def fixture(system: str, name: str) -> Fixture:
    path = FOLDER / system / f"{name}.json"
    return _fixture(path, json.loads(path.read_text()))


def _fixture(path: Path, truth: dict[str, Any]) -> Fixture:
    wire = path.with_suffix(".sse" if truth["streamed"] else ".body").read_bytes()
    return Fixture(path.parent.name, path.stem, wire, truth)


def counts(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in COUNTS}


def dollars(
    prompt: int, completion: int, *, cached: int | None = None, rates: dict[str, float] | None = None
) -> Decimal:
    """What that many tokens cost by the test's price list (USD per million tokens), cached ones at their own."""
    rate = {name: Decimal(str(price)) for name, price in (rates or PRICE).items()}
    cached = cached or 0
    micro = (prompt - cached) * rate["input"] + cached * rate["cached_input"] + completion * rate["output"]
    return micro / 1_000_000
