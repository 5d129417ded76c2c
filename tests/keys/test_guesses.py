"""How many guesses an address has, and how much is kept of whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.keys import guesses as module
from proxy.keys.guesses import GUESSES_MAX, WINDOW_S, Guesses, group_of

HERE = "192.0.2.1"


def guessing(guesses: Guesses, address: str | None, now: float) -> bool:
    """True if it may guess, and it has."""
    if guesses.retry_after_s(address, now):
        return False
    guesses.count(address, now)
    return True


def test_so_many_within_a_minute_and_no_more() -> None:
    guesses = Guesses()
    assert all(guessing(guesses, HERE, float(second)) for second in range(GUESSES_MAX))
    assert not guessing(guesses, HERE, 19.0)
    assert guesses.retry_after_s(HERE, 19.0) == WINDOW_S - 19
    assert guesses.retry_after_s(HERE, WINDOW_S - 0.25) == 0.25
    assert guessing(guesses, HERE, WINDOW_S)
    assert guesses.retry_after_s(HERE, WINDOW_S) == 1.0  # the second one was a second after the first
    assert guessing(guesses, "192.0.2.2", 19.0)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200))
def test_never_more_in_any_minute_and_always_when_it_was_said(gaps: list[float]) -> None:
    guesses, now, times = Guesses(), 0.0, list[float]()
    for gap in gaps:
        now += gap
        wait_s = guesses.retry_after_s(HERE, now)
        assert wait_s == 0 or not guessing(guesses, HERE, now)
        if guessing(guesses, HERE, now):
            times.append(now)
        assert guesses.retry_after_s(HERE, now + wait_s + 1e-6) == 0 or wait_s == 0
    for start in times:
        assert sum(start <= at < start + WINDOW_S - 1e-6 for at in times) <= GUESSES_MAX


def test_what_is_looked_up_counts_until_it_is_found() -> None:
    guesses = Guesses()
    for _ in range(GUESSES_MAX * 2):
        guesses.count(HERE, 1.0, decided=False)
        assert guesses.uncertain(HERE)
        guesses.decide(HERE, failed=False)
        assert not guesses.uncertain(HERE)
    for _ in range(GUESSES_MAX):
        guesses.count(HERE, 1.0, decided=False)
    assert guesses.retry_after_s(HERE, 1.0) == WINDOW_S
    guesses.decide(HERE, failed=False)
    assert guesses.retry_after_s(HERE, 1.0) == 0
    for _ in range(GUESSES_MAX - 1):
        guesses.decide(HERE, failed=True)
    assert not guesses.uncertain(HERE)
    guesses.count(HERE, 1.0)
    assert guesses.retry_after_s(HERE, 1.0) == WINDOW_S


def test_who_has_no_address_is_never_limited() -> None:
    guesses = Guesses()
    assert all(guessing(guesses, None, 1.0) for _ in range(100))
    guesses.decide(None, failed=False)
    assert not guesses.uncertain(None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff:ffff:ffff:ffff", True),
        ("2001:db8:0:1::1", "2001:0DB8:0000:0001:0:0:0:9", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("unix:", "unix:", True),
        ("unix:", "@", False),
        ("", "::", False),
    ],
)
def test_what_counts_together(one: str, other: str, same: bool) -> None:
    assert (group_of(one) == group_of(other)) is same
    guesses = Guesses()
    for _ in range(GUESSES_MAX):
        assert guessing(guesses, one, 1.0)
    assert guessing(guesses, other, 1.0) is not same


def test_memory_is_bounded_and_who_guessed_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_MAX", 3)
    guesses = Guesses()
    for _ in range(GUESSES_MAX * 2):
        guesses.count("10.0.0.1", 1.0)
    for last in (2, 3, 1, 4):  # the first has guessed again
        guesses.count(f"10.0.0.{last}", 2.0)
    assert list(guesses._failed) == ["10.0.0.3", "10.0.0.1", "10.0.0.4"]
    assert guesses.retry_after_s("10.0.0.1", 2.0) > 0
    assert max(len(kept) for kept in guesses._failed.values()) == GUESSES_MAX


def test_however_odd_an_address_little_is_kept() -> None:
    guesses = Guesses()
    guesses.count("x" * 10_000, 1.0)
    assert max(map(len, guesses._failed)) < 50
