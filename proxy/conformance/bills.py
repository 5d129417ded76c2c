"""The amounts that the gateway booked, as printed by a command: one JSON object per line.

Invariants: a line that cannot be read is an error that names the line and the field, never a bill of zero. Amounts
booked before a run are subtracted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

# How long the command may take.
COMMAND_S_MAX = 60.0
_MONEY = ("charge_usd", "cost_usd", "usd")


class UnreadableBill(ValueError):  # noqa: N818  as the command's user reads it
    """The command failed, or its output is no bill."""


@dataclass(frozen=True, slots=True)
class GatewayBill:
    """The sum of the amounts booked for a model."""

    lines: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: Decimal | None = None
    """None: no line has an amount"""

    @property
    def is_empty(self) -> bool:
        """True if nothing was booked. The number of lines alone proves nothing, because a command may print sums."""
        return not (self.lines or self.prompt_tokens or self.completion_tokens or self.usd)

    def __add__(self, other: GatewayBill) -> GatewayBill:
        return self._with(other, 1)

    def __sub__(self, other: GatewayBill) -> GatewayBill:
        return self._with(other, -1)

    def _with(self, other: GatewayBill, sign: int) -> GatewayBill:
        known = [amount * factor for amount, factor in ((self.usd, 1), (other.usd, sign)) if amount is not None]
        return GatewayBill(
            self.lines + sign * other.lines,
            self.prompt_tokens + sign * other.prompt_tokens,
            self.completion_tokens + sign * other.completion_tokens,
            sum(known, Decimal(0)) if known else None,
        )


async def read_bills(command: str) -> dict[str, GatewayBill]:
    """Run `command` with the shell. Returns the sums by model. Raises UnreadableBill."""
    child = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(COMMAND_S_MAX):
            printed, errors = await child.communicate()
    except TimeoutError:
        raise UnreadableBill(f"--bills: the command took longer than {COMMAND_S_MAX:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        reason = errors.decode("utf-8", "replace").strip()[-500:]
        raise UnreadableBill(f"--bills: the command failed with exit code {child.returncode}: {reason}")
    return sums(printed.decode("utf-8", "replace").split("\n"))


def sums(lines: Iterable[str]) -> dict[str, GatewayBill]:
    """The sums by model of JSON lines. Raises UnreadableBill."""
    bills: dict[str, GatewayBill] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            model, bill = _read(line, number)
            bills[model] = bills.get(model, GatewayBill()) + bill
    return bills


def _read(line: str, number: int) -> tuple[str, GatewayBill]:
    try:
        booked = json.loads(line, parse_float=Decimal)
    except ValueError:
        booked = None
    if not isinstance(booked, dict):
        raise UnreadableBill(f"--bills: line {number} is not a JSON object: {line[:80]}")
    model = booked.get("model")
    if not isinstance(model, str):
        raise UnreadableBill(f"--bills: line {number}: model: expected a string")
    prompt, completion = (_count(booked, name, number) for name in ("prompt_tokens", "completion_tokens"))
    return model, GatewayBill(1, prompt, completion, _amount(booked, number))


def _count(booked: dict[str, Any], name: str, number: int) -> int:
    value = booked.get(name)
    if value is None:
        return 0
    if type(value) is not int:
        raise UnreadableBill(f"--bills: line {number}: {name}: expected a whole number, got {value}")
    return value


def _amount(booked: dict[str, Any], number: int) -> Decimal | None:
    name = next((name for name in _MONEY if booked.get(name) is not None), None)
    if name is None:
        return None
    try:
        amount = Decimal(str(booked[name]))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise UnreadableBill(f"--bills: line {number}: {name}: expected an amount of USD, got {booked[name]}")
    return amount
