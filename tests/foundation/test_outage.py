"""An outage is reported when it begins and when it ends."""

from __future__ import annotations

import logging

import pytest

from proxy.foundation.outage import Outage, OutageLog


def test_it_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[int] = []
    outage = Outage(OutageLog("sending", lambda: counted.append(1)))
    outage.over()
    assert not outage.lasts
    for _ in range(3):
        outage.began(OSError("no route"))
        assert outage.lasts
    for _ in range(2):
        outage.over()
        assert not outage.lasts
    lines = [(one.levelno, one.getMessage(), one.exc_info) for one in caplog.records]
    assert lines == [
        (logging.ERROR, "sending: no route", None),
        (logging.WARNING, "sending: works again", None),
    ]
    assert counted == [1]


def test_a_bug_shows_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(OutageLog("sending"))
    outage.began(ZeroDivisionError("oops"))
    assert caplog.records[0].exc_info
    assert "ZeroDivisionError" in caplog.text
