"""What is learned from a reported usage."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from proxy.billing.record import Opened
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.held_text import AnswerText, PromptText, TextKind, TextRoom
from proxy.metering.metered import Metered
from proxy.metering.profile import Counted, Profile
from proxy.metering.usage import Evidence, PromptEvidence, Usage
from tests.gateway.exchange.alone import Ended, exchange_alone


class Later:
    """A counter that tells when it is let."""

    def __init__(self, *, has_room: bool = True) -> None:
        self.room = TextRoom(answer_bytes_max=1 << 16, bytes_max=1 << 16)
        self.told: Callable[[Counted | None, Profile | None], None] | None = None
        self._has_room = has_room

    def count(
        self,
        held: AnswerText | None,
        prompt: PromptText | None,
        told: Callable[[Counted | None, Profile | None], None],
        *,
        urgent: bool,
    ) -> bool:
        assert not urgent, "nobody waits for what was reported"
        assert prompt is not None
        assert prompt.text == "A question"
        self.told = told
        return self._has_room


class Learned(Ended):
    """Keeps the errors of estimates."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[float | None] = []

    def estimated(self, _opened: object, error: float) -> None:
        self.errors.append(error)

    def ended(self, record: object, *details: object, estimate_error: float | None = None, **more: object) -> None:
        self.errors.append(estimate_error)


OPENED = Opened("x", "k", "k", "p", "m", "m", "/v1", True, 0.0, None, None, 3, None, 0)


def count_of(tokens: int, *, own: bool) -> Counted:
    return Counted(Profile(tokens, 800, letters=650), Profile(), own)


@pytest.mark.parametrize(
    ("counter", "counted", "at_once", "later"),
    [
        (None, None, 0.041, []),  # of the counters
        (Later(has_room=False), None, 0.041, []),
        (Later(), count_of(198, own=True), None, [-0.008]),  # of what was counted, once it is
        (Later(), count_of(206, own=False), None, [0.002]),
        (Later(), None, None, [0.041]),  # it could not be
    ],
)
def test_what_was_counted_is_learned_later(
    counter: Later | None, counted: Counted | None, at_once: float | None, later: list[float]
) -> None:
    ended, estimator = Learned(), Estimator()
    prompt = PromptEvidence(messages=1, chars_latin=10, text=PromptText("A question"))
    open_exchange = exchange_alone(OPENED, ended, estimator, prompt=prompt, counter=counter)
    seen = Evidence(text_events=200, chars_latin=800)
    held = AnswerText(TextRoom(answer_bytes_max=1 << 16, bytes_max=1 << 16))
    held.add(TextKind.TEXT, "weir" * 200)
    usage = Usage(9, None, 193 if counted is None else 200)
    metered = Metered(usage, None, seen, "stop", None, True, None, 3, (), {}, held=held)
    assert open_exchange._learn(metered) == (None if at_once is None else pytest.approx(at_once, abs=0.001))
    if at_once is None:
        assert ended.errors == []
        assert counter is not None
        assert counter.told is not None
        counter.told(counted, None if counted is None else Profile(3, 10))
    assert ended.errors == pytest.approx(later, abs=0.004)
    learned = estimator.export()
    assert bool(learned["tokenized"]) is bool(counted and counted.own)
    assert ("referenced-3" in learned) is bool(counted and not counted.own)
    assert ("prompted-3" in learned) is bool(counted)


@pytest.mark.parametrize("details", [{}, {"refuted": {"completion_tokens": {"reported": 1, "at_least": 7}}}])
def test_a_refuted_count_teaches_nothing(details: dict[str, object]) -> None:
    ended, estimator = Learned(), Estimator()
    prompt = PromptEvidence(messages=1, chars_latin=10)
    open_exchange = exchange_alone(OPENED, ended, estimator, prompt=prompt)
    seen = Evidence(text_events=200, chars_latin=800)
    metered = Metered(Usage(9, None, 1), None, seen, "stop", None, True, None, 3, (), {})
    open_exchange._tell(SimpleNamespace(details=details), metered)  # type: ignore[arg-type]
    assert (ended.errors == [None]) is bool(details)
    assert (estimator.export() == Estimator().export()) is bool(details)
