"""The table of an exchange's life: every cell has its line or cannot happen, and every walk keeps the promises."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.exchange import lifecycle
from proxy.gateway.exchange.lifecycle import (
    IMPOSSIBLE,
    TABLE,
    Action,
    Cell,
    Client,
    End,
    Event,
    ImpossibleEventError,
    Lifecycle,
    Phase,
    Transition,
)

CELLS = list(product(Phase, Client, Event))


def test_every_cell_has_a_line_or_a_reason_why_it_has_none() -> None:
    assert [cell for cell in CELLS if (cell in TABLE) == bool(IMPOSSIBLE.get(cell))] == []


# Why a cell is empty in a row that has others: what must be true of the cell.
REASONS: dict[str, Callable[[Phase, Client, Event], bool]] = {
    lifecycle.NOT_BEGUN: lambda p, c, e: p in (Phase.ASKING, Phase.ANSWERED) and c is Client.READING,
    lifecycle.BEGUN: lambda p, c, e: p in (Phase.BODY, Phase.CLOSING) and c is Client.WAITING,
    lifecycle.IS_GONE: lambda p, c, e: c is Client.GONE and e in OF_THE_CLIENT,
    lifecycle.IS_FULL: lambda p, c, e: c is Client.BLOCKED and e is Event.FULL,
    lifecycle.NOT_FULL: lambda p, c, e: c in OPEN and e in (Event.DRAINED, Event.WRITE_STALL),
    lifecycle.IS_HERE: lambda p, c, e: c is not Client.GONE and e is Event.DRAINED_ENOUGH,
    lifecycle.PAUSED: lambda p, c, e: c is Client.BLOCKED and e in (Event.SILENT, Event.HEARTBEAT),
    lifecycle.AT_ONCE: lambda p, c, e: p is Phase.CLOSING and c in (Client.READING, Client.GONE),
}
OF_THE_CLIENT = (
    Event.LEFT_CANCEL, Event.LEFT_DRAIN, Event.LEFT_SERVED, Event.FULL, Event.DRAINED, Event.HEARTBEAT,
    Event.WRITE_STALL,
)  # fmt: skip
OPEN = (Client.WAITING, Client.READING)


def test_a_reason_fits_its_cell_and_an_event_without_a_row_has_one_reason_for_every_client() -> None:
    rows = {(phase, event) for phase, _, event in TABLE}
    for (phase, client, event), reason in IMPOSSIBLE.items():
        if (phase, event) in rows:
            assert REASONS[reason](phase, client, event), (phase, client, event)
        else:
            assert {IMPOSSIBLE[phase, other, event] for other in Client} == {reason}


def test_a_line_is_taken_whole_and_what_is_none_changes_nothing() -> None:
    for cell in CELLS:
        life = Lifecycle()
        life.phase, life.client = cell[:2]
        if cell in IMPOSSIBLE:
            with pytest.raises(ImpossibleEventError, match=cell[2]):
                life.step(cell[2])
            assert (life.phase, life.client, life.end) == (*cell[:2], None)
        else:
            line = TABLE[cell]
            assert life.step(cell[2]) == line.actions, cell
            assert (life.phase, life.client, life.end) == line[:2] + line[3:], cell


def reachable() -> set[Cell]:
    """The cells that a walk from the start gets to."""
    seen: set[tuple[Phase, Client]] = set()
    todo = [(Phase.ASKING, Client.WAITING)]
    while todo:
        where = todo.pop()
        if where not in seen:
            seen.add(where)
            todo += [line[:2] for cell, line in TABLE.items() if cell[:2] == where]
    return {cell for cell in TABLE if cell[:2] in seen}


def test_every_line_can_be_reached() -> None:
    assert reachable() == set(TABLE)


def test_what_each_line_keeps() -> None:
    assert {cell: broken for cell, line in TABLE.items() if (broken := broken_by(cell, line))} == {}


def broken_by(cell: Cell, line: Transition) -> list[str]:
    """The promises that a line breaks."""
    phase, client, event = cell
    order, done = list(Phase), set(line.actions)
    closes = line.phase is Phase.CLOSING and phase is not Phase.CLOSING
    begins = {Action.BEGIN, Action.DELIVER, Action.RESPOND} & done
    to_it = {
        Action.BEGIN,
        Action.DELIVER,
        Action.RESPOND,
        Action.RELAY,
        Action.SEND_ERROR_EVENT,
        Action.FINISH,
        Action.SEND_HEARTBEAT,
    }
    recorded = set(line.actions[line.actions.index(Action.RECORD) + 1 :]) if Action.RECORD in done else set()
    before, after = ((one[0] is Phase.BODY and one[1] is Client.BLOCKED) for one in (cell, line))
    within = line.phase is Phase.BODY
    cut = line.end not in (None, End.COMPLETE) and phase is Phase.BODY and line.client is not Client.GONE
    kept = {
        "no phase comes again": order.index(line.phase) >= order.index(phase),
        "who is gone stays so": client is not Client.GONE or line.client is Client.GONE,
        "one record, on the way to CLOSING": closes == (line.end is not None) == (Action.RECORD in done),
        "nothing ends without it": line.phase is not Phase.ENDED or phase is Phase.CLOSING,
        "one head": len(begins) <= 1 and (not begins or phase in (Phase.ASKING, Phase.ANSWERED)),
        "nothing is written to who is gone": line.client is not Client.GONE or not to_it & done,
        "what is delivered is in the record": not recorded & {Action.RELAY, Action.SEND_ERROR_EVENT, Action.DELIVER},
        "paused when it is blocked": not within or (Action.PAUSE in done) == (after and not before),
        "and only then": not within or (Action.RESUME in done) == (before and not after),
        "the provider is let go, unless it has ended": (closes and event is not Event.END) == (Action.STOP in done),
        "what is not whole has no proper end": cut == (Action.CLOSE_CLIENT in done),
    }
    return [promise for promise, holds in kept.items() if not holds]


@given(st.lists(st.sampled_from([event for event in Event if event is not Event.SENT]), max_size=40))
def test_a_walk_has_one_head_one_record_and_pairs_of_pauses(events: list[Event]) -> None:
    life, done = Lifecycle(), list[Action]()
    for event in events:
        if (life.phase, life.client, event) in TABLE:
            done += life.step(event)
            if life.phase is Phase.CLOSING:
                done += life.step(Event.SENT)
    heads = [one for one in done if one in (Action.BEGIN, Action.DELIVER, Action.RESPOND)]
    assert len(heads) <= 1
    assert done.count(Action.RECORD) == (life.phase in (Phase.CLOSING, Phase.ENDED))
    pairs = [one for one in done if one in (Action.PAUSE, Action.RESUME)]
    assert pairs == [Action.PAUSE, Action.RESUME] * (len(pairs) // 2) + [Action.PAUSE] * (len(pairs) % 2)
    assert done.count(Action.FINISH) + done.count(Action.CLOSE_CLIENT) <= 1
