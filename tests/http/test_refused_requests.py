"""The refusals that a process keeps: bounded, fair between keys, without secrets."""

from __future__ import annotations

import pytest

from proxy.http import refused_requests
from proxy.http.errors import AboutRequest, ApiError
from proxy.http.refused_requests import RefusalLog


def refusal(key_id: str | None = "key-1", model: str = "m", message: str = "No.") -> ApiError:
    made = ApiError(402, message, kind="insufficient_quota", code="insufficient_quota")
    made.about = AboutRequest(key_id, key_id, "/v1/chat/completions", model)
    made.limit = "this key"
    return made


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> RefusalLog:
    monkeypatch.setattr(refused_requests, "KEPT_MAX", 5)
    monkeypatch.setattr(refused_requests, "OF_KEY_MAX", 3)
    return RefusalLog(unix_time=lambda: 7.0)


def test_a_client_that_repeats_displaces_its_own_refusals_only(log: RefusalLog) -> None:
    first = log.note(refusal("key-2"))
    own = [log.note(refusal()) for _ in range(9)]
    assert [one.id for one in log.latest()] == [first, *own[-3:]]


def test_the_oldest_of_all_is_dropped(log: RefusalLog) -> None:
    ids = [log.note(refusal(f"key-{number % 4}" if number % 5 else None)) for number in range(40)]
    kept = [one.id for one in log.latest()]
    assert kept == [one for one in ids if one in kept]
    assert len(kept) <= 5
    assert kept[-1] == ids[-1]


def test_an_organization_with_many_keys_leaves_the_others_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: 2,000 refusals of one organization, 200 of each of its ten keys, displaced those of all others."""
    monkeypatch.setattr(refused_requests, "KEPT_MAX", 12)
    monkeypatch.setattr(refused_requests, "OF_KEY_MAX", 3)
    log = RefusalLog(unix_time=lambda: 7.0, organization_of=lambda key_id: key_id.partition("/")[0])
    small = [log.note(refusal(f"small/{number}")) for number in range(3)]
    unknown = log.note(refusal(None))
    large = [log.note(refusal(f"large/{number}")) for number in range(300)]
    assert [one.id for one in log.latest()] == [*small, unknown, *large[-8:]]
    late = [log.note(refusal(f"late/{number}")) for number in range(300)]
    kept = [one.id for one in log.latest()]
    assert kept[:4] == [*small, unknown]
    assert (len(kept), len({*kept} & {*large}), len({*kept} & {*late})) == (12, 5, 3)


def test_what_is_kept(log: RefusalLog) -> None:
    secret = f"tw-{'a' * 43}"
    exchange = log.note(refusal(model=f"gpt {secret}", message=f"The model '{secret}' does not exist." + "x" * 9_000))
    (one,) = log.latest()
    assert (one.id, one.at, one.status, one.code, one.limit) == (exchange, 7.0, 402, "insufficient_quota", "this key")
    assert (one.key_id, one.endpoint, one.kind) == ("key-1", "/v1/chat/completions", "insufficient_quota")
    assert secret not in str(one)
    for provider_key in (
        f"AIza{'b' * 35}", f"gsk_{'c' * 40}", f"xai-{'d' * 60}", f"AKIA{'E' * 16}", f"eyJ{'f' * 40}.{'g' * 9}.{'h' * 9}"
    ):  # fmt: skip
        log.note(refusal(model=f"gpt {provider_key}", message=f"The model 'gpt {provider_key}' does not exist."))
        assert provider_key[4:] not in str(log.latest()[-1])
    assert len(one.message) <= 500
