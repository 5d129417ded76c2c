"""The table of an exchange's life: every cell has its line or cannot happen, and every walk keeps the promises."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.exchange.lifecycle import (
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

LEFT = (Event.LEFT_CANCEL, Event.LEFT_DRAIN, Event.LEFT_SERVED)

# Why a cell cannot happen: the first reason that fits.
IMPOSSIBLE: list[tuple[str, set[Cell]]] = [
    ("the exchange is over, and hears nothing more", set(product([Phase.ENDED], Client, Event))),
    (
        "the response has begun exactly from BODY on, so the client waits exactly before",
        set(product([Phase.BODY, Phase.CLOSING], [Client.WAITING], Event))
        | set(product([Phase.ASKING, Phase.ANSWERED], [Client.READING], Event)),
    ),
    (
        "who is gone neither reads nor leaves again",
        set(product(Phase, [Client.GONE], [*LEFT, Event.FULL, Event.DRAINED, Event.HEARTBEAT, Event.WRITE_STALL])),
    ),
    ("a blocked client is full already", set(product(Phase, [Client.BLOCKED], [Event.FULL]))),
    (
        "only a blocked client can drain, or stall",
        set(product(Phase, [Client.WAITING, Client.READING], [Event.DRAINED, Event.WRITE_STALL])),
    ),
    (
        "enough is read only for a client that is gone",
        set(product(Phase, [Client.WAITING, Client.READING, Client.BLOCKED], [Event.DRAINED_ENOUGH])),
    ),
    (
        "there is one head of an answer",
        set(product([Phase.ANSWERED, Phase.BODY, Phase.CLOSING], Client,
                    [Event.ACCEPTED, Event.REFUSED, Event.UNREACHABLE, Event.NO_ANSWER])),
    ),
    (
        "before a head there is no body",
        set(product([Phase.ASKING], Client, [Event.START, Event.PIECE, Event.END, Event.BREAK, Event.SILENT])),
    ),
    ("a body starts once", set(product([Phase.BODY, Phase.CLOSING], Client, [Event.START]))),
    (
        "what was not begun is neither cut, nor beats, nor was read to its last event",
        set(product([Phase.ASKING, Phase.ANSWERED], Client, [Event.BUDGET_CUT, Event.HEARTBEAT, Event.LEFT_SERVED])),
    ),
    ("all is sent only once the exchange is closing",
     set(product([Phase.ASKING, Phase.ANSWERED, Phase.BODY], Client, [Event.SENT]))),
    ("the provider is paused while the client is blocked, so its silence is no news",
     set(product([Phase.BODY], [Client.BLOCKED], [Event.SILENT, Event.HEARTBEAT]))),
    (
        "the provider was let go",
        set(product([Phase.CLOSING], Client, [Event.PIECE, Event.END, Event.BREAK])),
    ),
    (
        "no deadline of the answer is armed any more, and nothing costs more",
        set(product([Phase.CLOSING], Client,
                    [Event.SILENT, Event.TOO_LONG, Event.HEARTBEAT, Event.DRAINED_ENOUGH, Event.BUDGET_CUT])),
    ),
    (
        "a client that takes all is at the end as soon as all is sent, in the same call",
        set(product([Phase.CLOSING], [Client.READING], [*LEFT, Event.SHUT_DOWN])),
    ),
    (
        "what was read is settled, however a client leaves now",
        set(product([Phase.CLOSING], [Client.BLOCKED], [Event.LEFT_DRAIN, Event.LEFT_SERVED])),
    ),
    ("likewise for one that is gone", set(product([Phase.CLOSING], [Client.GONE], [Event.SHUT_DOWN]))),
]  # fmt: skip
CELLS = list(product(Phase, Client, Event))
UNREACHABLE = set().union(*(cells for _, cells in IMPOSSIBLE))


def test_every_cell_has_a_line_or_a_reason_why_it_has_none() -> None:
    assert [cell for cell in CELLS if (cell in TABLE) == (cell in UNREACHABLE)] == []


def test_a_line_is_taken_whole_and_what_is_none_changes_nothing() -> None:
    for cell in CELLS:
        life = Lifecycle()
        life.phase, life.client = cell[:2]
        if cell in UNREACHABLE:
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
    to_it = {Action.BEGIN, Action.DELIVER, Action.RESPOND, Action.PASS, Action.TELL, Action.FINISH, Action.BEAT}
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
        "what is delivered is in the record": not recorded & {Action.PASS, Action.TELL, Action.DELIVER},
        "paused when it is blocked": not within or (Action.PAUSE in done) == (after and not before),
        "and only then": not within or (Action.RESUME in done) == (before and not after),
        "the provider is let go, unless it has ended": (closes and event is not Event.END) == (Action.STOP in done),
        "what is not whole has no proper end": cut == (Action.CUT in done),
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
    assert done.count(Action.FINISH) + done.count(Action.CUT) <= 1
