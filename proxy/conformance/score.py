"""Verdicts: the relayed bytes and the bill of each case, compared with the provider's log. Pure.

Invariants: a bill is `exact` only if the tokens and, where a line has it, the money equal the truth; `close` is allowed
only if no usage was reported. A case that did not run is `not run` and does not count as right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from proxy.conformance.answers import Scripted
from proxy.conformance.bills import GatewayBill
from proxy.conformance.cases import Case
from proxy.conformance.client import Received
from proxy.conformance.provider import Served
from proxy.conformance.wires import CHAT, answer_text, shows_usage
from proxy.demo.script import Reset

# Allowed relative error of an estimate, if no usage was reported.
ESTIMATE_TOLERANCE = 0.15
# The allowed error in tokens: a few are in flight when a client disconnects.
ESTIMATE_TOKENS = 5
# Floating point in the gateway's own sums.
USD_TOLERANCE = Decimal("1e-6")
# A stream that takes less than this part of the provider's time was buffered.
BUFFERED_PART = 0.25


@dataclass(frozen=True, slots=True)
class Truth:
    """The exchanges of a case by the provider's log."""

    exchanges: int
    prompt_tokens: int
    completion_tokens: int
    reported: bool
    """True if every answer reported usage"""
    usd: Decimal | None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One row of the scoreboard."""

    case: Case
    relayed: str
    """`bytes`, `text`, or the fault"""
    billed: str
    """`exact`, `close`, or the fault"""
    truth: Truth
    bill: GatewayBill

    @property
    def ran(self) -> bool:
        """False if the case did not run."""
        return self.billed != NOT_RUN

    @property
    def right(self) -> bool:
        """True if neither the relayed answer nor the bill has a fault."""
        return self.relayed in {"bytes", "text", "-"} and self.billed in {"exact", "close"}


NOT_RUN = "not run"


def truth_of(case: Case, served: Sequence[Served]) -> Truth:
    """The truth of a case. A gateway that repeats a request causes more than one exchange."""
    reported = bool(served) and all(exchange.reported or exchange.scripted.status != 200 for exchange in served)
    return Truth(
        len(served),
        sum(exchange.prompt_tokens for exchange in served),
        sum(exchange.completion_tokens for exchange in served),
        reported,
        case.usd * len(served) if case.usd is not None and reported else None,
    )


def result_of(case: Case, served: Sequence[Served], received: Sequence[Received], bill: GatewayBill) -> CaseResult:
    """The verdict on a case that ran."""
    truth = truth_of(case, served)
    if not served:
        status = next((answer.status or answer.failure for answer in received), "no answer")
        return CaseResult(case, f"not passed on ({status})", "nothing", truth, bill)
    return CaseResult(case, relayed(case, served, received), billed(case, truth, bill), truth, bill)


# -- what was billed ---------------------------------------------------------------------------------------------


def billed(case: Case, truth: Truth, bill: GatewayBill) -> str:
    """The verdict on the bill: `exact`, `close`, or the fault."""
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


def _money(truth: Truth, bill: GatewayBill) -> str:
    if truth.usd is None or bill.usd is None:
        return "exact"
    if abs(bill.usd - truth.usd) <= abs(truth.usd) * USD_TOLERANCE:
        return "exact"
    return f"${_shown(bill.usd)} of ${_shown(truth.usd)}"


def _shown(usd: Decimal) -> str:
    return f"{usd.quantize(Decimal('1e-9')).normalize():f}"


# -- what was relayed --------------------------------------------------------------------------------------------


def relayed(case: Case, served: Sequence[Served], received: Sequence[Received]) -> str:
    """The verdict on the answers: `bytes` (unchanged), `text` (the whole text in other bytes), or the fault."""
    if case.client.leaves_after == 0:
        return "-"
    shows = case.client.include_usage is True
    left = [
        (exchange.scripted, exchange.scripted.body(with_usage=exchange.usage_requested and shows))
        for exchange in served
    ]
    if any(_is_buffered(case, served[0].scripted, answer) for answer in received):
        return "buffered"
    verdicts = [_matched(case, answer, left) for answer in received]
    return next(
        (verdict for verdict in verdicts if verdict not in {"bytes", "text"}), "text" if "text" in verdicts else "bytes"
    )


def _matched(case: Case, answer: Received, left: list[tuple[Scripted, bytes]]) -> str:
    """The verdict on one answer. The exchange that it matches is removed from `left`."""
    for how, same in (("bytes", _has_same_bytes), ("text", _has_same_text)):  # equal bytes are preferred
        for scripted, sent in left:
            if same(case, scripted, sent, answer):
                left.remove((scripted, sent))
                return _seen_usage(case, scripted, answer) or how
    status = f"status {answer.status}" if answer.status != 200 else answer.failure
    return f"differs ({status})" if status else "differs"


def _has_same_bytes(case: Case, scripted: Scripted, sent: bytes, answer: Received) -> bool:
    """True if the received bytes equal the sent ones. A gateway may append an error to a broken answer."""
    got = answer.body
    if not scripted.broken:
        return (bool(got) and sent.startswith(got)) if case.cut_short else got == sent
    common = next((at for at, (due, came) in enumerate(zip(sent, got, strict=False)) if due != came), len(got))
    common = min(common, len(sent))
    rest = got[common:]
    is_error = (b"error" in rest or b"exception" in rest) and not answer_text(rest)
    return _enough(scripted, common, len(sent)) and (not rest or is_error)


def _has_same_text(case: Case, scripted: Scripted, sent: bytes, answer: Received) -> bool:
    """True if the received text equals the sent text; for a broken answer, a beginning of it."""
    due, got = answer_text(sent), answer_text(answer.body)
    if case.cut_short or scripted.broken:
        return due.startswith(got) and _enough(scripted, len(got), len(due))
    return got == due and (bool(due) or answer.status == scripted.status)


def _enough(scripted: Scripted, came: int, sent: int) -> bool:
    """True if the client received enough: all bytes written, or less after a reset or its own disconnect."""
    return came == sent if scripted.broken and Reset() not in scripted.ends else came > 0


def _seen_usage(case: Case, scripted: Scripted, answer: Received) -> str:
    """The fault in the usage that the client received; empty: none."""
    if case.wire is not CHAT or case.cut_short or scripted.broken or not case.client.streams:
        return ""
    apart = any(piece.only_with_usage for piece in scripted.pieces)
    seen = shows_usage(answer.body)
    if apart and seen != (case.client.include_usage is True):
        return "usage is shown" if seen else "usage is missing"
    return ""


def _is_buffered(case: Case, scripted: Scripted, answer: Received) -> bool:
    """True if the gateway buffered a slow stream and sent it at once."""
    if case.cut_short or scripted.broken:
        return False
    due_s = sum(piece.pause_ms for piece in scripted.pieces if piece.tokens) / 1000
    return answer.took_s < due_s * BUFFERED_PART


# -- the scoreboard ----------------------------------------------------------------------------------------------


def summary(results: Sequence[CaseResult]) -> str:
    """The last line of the scoreboard."""
    ran = [result for result in results if result.ran]
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
