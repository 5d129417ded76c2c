"""Verdicts: what was relayed and what was billed, beside what is true. Pure.

Invariants: a bill is `exact` only if tokens and, where a line says it, money are those of the truth; `close` is allowed
only where nobody reported a usage. What the suite cannot know it says (`not run`), and does not count as right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from proxy.conformance.answers import Scripted
from proxy.conformance.bills import Bill
from proxy.conformance.cases import Case
from proxy.conformance.client import Received
from proxy.conformance.provider import Served
from proxy.conformance.wires import CHAT, said, shows_usage
from proxy.demo.script import Reset

# How far an estimate may be off, where nobody said a number.
ESTIMATE_TOLERANCE = 0.15
# And in tokens: of those, a few are on their way when somebody leaves.
ESTIMATE_TOKENS = 5
# Floating point in the gateway's own sums.
USD_TOLERANCE = Decimal("1e-6")
# A stream that takes less than this part of the provider's time was held back.
HELD_BACK = 0.25


@dataclass(frozen=True, slots=True)
class Truth:
    """What the exchanges of a case truly were."""

    exchanges: int
    prompt_tokens: int
    completion_tokens: int
    reported: bool
    """by every answer"""
    usd: Decimal | None


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the scoreboard."""

    case: Case
    relayed: str
    """bytes, text, or what is wrong"""
    billed: str
    """exact, close, or what is wrong"""
    truth: Truth
    bill: Bill

    @property
    def ran(self) -> bool:
        """False if there is nothing to judge."""
        return self.billed != NOT_RUN

    @property
    def right(self) -> bool:
        """Whether client and bill got what they should."""
        return self.relayed in {"bytes", "text", "-"} and self.billed in {"exact", "close"}


NOT_RUN = "not run"


def truth_of(case: Case, served: Sequence[Served]) -> Truth:
    """The truth by the provider's log; a gateway that repeats a request causes more than one exchange."""
    reported = bool(served) and all(one.reported or one.scripted.status != 200 for one in served)
    return Truth(
        len(served),
        sum(one.prompt_tokens for one in served),
        sum(one.completion_tokens for one in served),
        reported,
        case.usd * len(served) if case.usd is not None and reported else None,
    )


def result_of(case: Case, served: Sequence[Served], received: Sequence[Received], bill: Bill) -> Result:
    """The verdict on one case that ran."""
    truth = truth_of(case, served)
    if not served:
        status = next((one.status or one.failure for one in received), "no answer")
        return Result(case, f"not passed on ({status})", "nothing", truth, bill)
    return Result(case, relayed(case, served, received), billed(case, truth, bill), truth, bill)


# -- what was billed ---------------------------------------------------------------------------------------------


def billed(case: Case, truth: Truth, bill: Bill) -> str:
    """exact, close, or what is wrong with the bill."""
    due = truth.completion_tokens or (truth.prompt_tokens and case.prompt_due)
    if due and bill.is_empty:
        return "nothing"
    off = [
        _off("prompt", bill.prompt_tokens, truth.prompt_tokens, truth) if case.prompt_due else "exact",
        _off("completion", bill.completion_tokens, truth.completion_tokens, truth),
    ]
    wrong = next((verdict for verdict in off if verdict not in {"exact", "close"}), None)
    if wrong is not None:
        return wrong
    if "close" in off:
        return "close"
    return _money(truth, bill)


def _off(what: str, booked: int, true: int, truth: Truth) -> str:
    if booked == true:
        return "exact"
    if not truth.reported and abs(booked - true) <= max(ESTIMATE_TOLERANCE * true, ESTIMATE_TOKENS):
        return "close"
    return f"{what} {booked} of {true}"


def _money(truth: Truth, bill: Bill) -> str:
    if truth.usd is None or bill.usd is None:
        return "exact"
    if abs(bill.usd - truth.usd) <= abs(truth.usd) * USD_TOLERANCE:
        return "exact"
    return f"${_shown(bill.usd)} of ${_shown(truth.usd)}"


def _shown(usd: Decimal) -> str:
    return f"{usd.quantize(Decimal('1e-9')).normalize():f}"


# -- what was relayed --------------------------------------------------------------------------------------------


def relayed(case: Case, served: Sequence[Served], received: Sequence[Received]) -> str:
    """bytes (as the provider sent them), text (all that was said, in other bytes), or what is wrong."""
    if case.client.leaves_after == 0:
        return "-"
    left = [(one.scripted, one.scripted.body(asked=one.asked and case.client.asks is True)) for one in served]
    if any(_held_back(case, served[0].scripted, one) for one in received):
        return "held back"
    verdicts = [_matched(case, one, left) for one in received]
    return next((one for one in verdicts if one not in {"bytes", "text"}), "text" if "text" in verdicts else "bytes")


def _matched(case: Case, one: Received, left: list[tuple[Scripted, bytes]]) -> str:
    """One answer against what the provider wrote; the exchange that it fits is taken out of `left`."""
    for how, same in (("bytes", _fits), ("text", _says)):  # of several with the same text, the one with the same bytes
        for scripted, sent in left:
            if same(case, scripted, sent, one):
                left.remove((scripted, sent))
                return _seen_usage(case, scripted, one) or how
    status = f"status {one.status}" if one.status != 200 else one.failure
    return f"differs ({status})" if status else "differs"


def _fits(case: Case, scripted: Scripted, sent: bytes, one: Received) -> bool:
    """Whether the bytes are those that were sent. A gateway may add an error to an answer that breaks off."""
    got = one.body
    if not scripted.broken:
        return (bool(got) and sent.startswith(got)) if case.cut_short else got == sent
    common = next((at for at, (due, came) in enumerate(zip(sent, got, strict=False)) if due != came), len(got))
    common = min(common, len(sent))
    rest = got[common:]
    return _enough(scripted, common, len(sent)) and (not rest or (_is_error(rest) and not said(rest)))


def _is_error(rest: bytes) -> bool:
    return b"error" in rest or b"exception" in rest


def _says(case: Case, scripted: Scripted, sent: bytes, one: Received) -> bool:
    """Whether the text is that which was sent; of an answer that breaks off, its beginning."""
    due, got = said(sent), said(one.body)
    if case.cut_short or scripted.broken:
        return due.startswith(got) and _enough(scripted, len(got), len(due))
    return got == due and (bool(due) or one.status == scripted.status)


def _enough(scripted: Scripted, came: int, sent: int) -> bool:
    """All that a provider wrote before it failed; a reset may lose some of it, and one who leaves does not get all."""
    return came == sent if scripted.broken and Reset() not in scripted.ends else came > 0


def _seen_usage(case: Case, scripted: Scripted, one: Received) -> str:
    """What is wrong with the usage that the client sees; empty: nothing."""
    if case.wire is not CHAT or case.cut_short or scripted.broken or not case.client.streams:
        return ""
    apart = any(piece.if_asked for piece in scripted.pieces)
    seen = shows_usage(one.body)
    if apart and seen != (case.client.asks is True):
        return "usage is shown" if seen else "usage is missing"
    return ""


def _held_back(case: Case, scripted: Scripted, one: Received) -> bool:
    """Whether a slow stream came at once."""
    if case.cut_short or scripted.broken:
        return False
    due_s = sum(piece.pause_ms for piece in scripted.pieces if piece.tokens) / 1000
    return one.took_s < due_s * HELD_BACK


# -- the scoreboard ----------------------------------------------------------------------------------------------


def summary(results: Sequence[Result]) -> str:
    """The last line of the scoreboard."""
    ran = [one for one in results if one.ran]
    counted = Counter(one.billed for one in ran)
    whole = sum(one.relayed == "bytes" for one in ran)
    right = sum(one.right for one in ran)
    parts = [
        f"{right} of {len(ran)} cases are right",
        f"billed exactly: {counted['exact']}",
        f"closely: {counted['close']}",
        f"with money to compare: {sum(one.bill.usd is not None and one.truth.usd is not None for one in ran)}",
        f"relayed byte for byte: {whole}",
    ]
    skipped = len(results) - len(ran)
    return "; ".join(parts) + (f"; not run: {skipped}" if skipped else "")
