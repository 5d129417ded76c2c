"""An operator's change is recorded before it is made, and its result afterwards."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import Engine

from proxy.ledger.accounts import audit_log as acts
from proxy.ledger.accounts.audit_log import Actor, AuditEntry, AuditLog

pytestmark = pytest.mark.io

BY = Actor("anna\n" + "a" * 300, "cli", "host")


def said(line: AuditEntry) -> tuple[str, str | None, str, str | None]:
    return line.action, line.target, line.result, line.words


def test_every_act_is_a_line_whatever_becomes_of_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts, "PAGE_ENTRIES", 2)
    clock = itertools.count(1_793_000_000)
    kept = AuditLog(engine, clock=lambda: float(next(clock)))
    with kept.operation(BY, "key.create", None, {"alias": "a"}) as act:
        assert [said(line) for line in kept.latest(9)] == [("key.create", None, "begun", None)]
        act.target = "key-1"
    pasted = "tw-" + "a" * 43
    with (
        pytest.raises(ValueError, match="no such key"),
        kept.operation(BY, "key.block", pasted, {"typed": ["x", pasted]}),
    ):
        raise ValueError(f"no such key: {pasted}")
    with pytest.raises(KeyError), kept.operation(BY, "key.block", "c", {}):
        raise KeyError("words that are nobody's business")
    lines = list(kept.since(0.0))
    assert [said(line) for line in lines] == [
        ("key.create", "key-1", "done", None),
        ("key.block", "tw-…", "refused", "no such key: tw-…"),
        ("key.block", "c", "failed", "KeyError"),
    ]
    assert [line.details for line in lines] == [{"alias": "a"}, {"typed": ["x", "tw-…"]}, None]
    assert lines[0].actor == "anna…" + "a" * 251
    assert (lines[0].via, lines[0].origin, lines[1].at) == ("cli", "host", 1_793_000_001.0)
    assert kept.latest(2) == lines[:0:-1]
    assert list(kept.since(1_793_000_001.0)) == lines[1:]


def test_the_last_operation_of_each_target(engine: Engine) -> None:
    """Of one action, with one of the results."""
    clock = itertools.count(1_793_000_000)
    kept = AuditLog(engine, clock=lambda: float(next(clock)))
    for number, (action, target) in enumerate([("send", "a"), ("send", "a"), ("send", "b"), ("block", "c")]):
        with kept.operation(BY, action, target, {"number": number}):
            pass
    with pytest.raises(ValueError, match="no"), kept.operation(BY, "send", "a", {}):
        raise ValueError("no")

    def found(*results: str) -> dict[str, object]:
        read = kept.latest_of("send", ["a", "b", "c"], results)
        return {target: (one.details or {}).get("number") for target, one in read.items()}

    assert found("done") == {"a": 1, "b": 2}
    assert found("refused") == {"a": None}
    assert found("begun") == {}


def test_of_operations_at_once_one_claims_the_target(engine: Engine) -> None:
    """Whatever the clocks of their processes say. Before: two that began within a millisecond both sent a statement."""
    clock = iter((2.0, 1.0, 3.0, 4.0))
    kept = AuditLog(engine, clock=lambda: next(clock))
    with kept.operation(BY, "send", "a", None) as first, kept.operation(BY, "send", "a", None) as second:
        assert kept.claim(first, "send", again=False) is None
        taken = kept.claim(second, "send", again=False)
        assert taken is not None
        assert (taken.act_id, taken.result) == (first.act_id, "begun")
    with kept.operation(BY, "send", "b", None) as other:
        assert kept.claim(other, "send", again=False) is None
    with kept.operation(BY, "send", "a", None) as third:
        assert kept.claim(third, "send", again=True) is not None
