"""Narrowed keys: whatever caveats a holder adds, the key may do less and no more; and nobody can take one away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.dimensions import NAMED, KeyDimensions
from proxy.billing.keys import ApiKey
from proxy.billing.limit_rules import CAPS
from proxy.foundation.secret import masked
from proxy.foundation.times import iso_utc
from proxy.keys import narrowing
from proxy.keys.narrowing import CAVEATS_MAX, InvalidCaveatError, PresentedKey, narrowed_key, narrowed_text, parse
from proxy.keys.secrets import is_ours
from proxy.reports.dimensions import ShownDimension

NOW = 1_793_000_000.0
PEPPER = b"p" * 32
KEY_ID = "key_0123456789abcdef0123"
KEY = ApiKey(KEY_ID, "anna", b"d" * 32, "", None, NOW, NOW + 9e6, None, 1)
ROOT = narrowing.root_key(KEY.digest, PEPPER)
NARROWABLE = narrowing.narrowable(KEY_ID, KEY.digest, PEPPER)
MODELS = ("a", "b", "c", "d")


def meant(text: str, parent: ApiKey = KEY, until: float | None = None) -> ApiKey | None:
    """What the proxy takes the key for; None: it refuses it."""
    parts = parse(text)
    chain = None if parts is None else narrowing.verified(parts, ROOT)
    if parts is None or chain is None:
        return None
    try:
        return narrowed_key(parent, parts.caveats, chain, until)
    except InvalidCaveatError:
        return None


def forged(text: str, *caveats: bytes) -> str:
    """The key with caveats that nobody has checked."""
    parts = parse(text)
    assert parts is not None
    *_, signature = narrowing.signatures(parts.signature, caveats)
    return PresentedKey(parts.key_id, (*parts.caveats, *caveats), signature).text()


models = st.lists(st.sampled_from(MODELS), min_size=1).map(lambda some: f"models={','.join(some)}")
ends = st.floats(NOW - 1e6, NOW + 1e7).map(lambda at: f"expires={iso_utc(at)}")
caps = st.integers(0, 10**12).map(lambda number: f"usd={number / 1e9:.9f}")
fixed = st.tuples(st.sampled_from(NAMED), st.sampled_from(("x", "y"))).map("=".join)
names = st.sampled_from(("name=x", "name=y", "stored=none"))
any_caveat = models | ends | caps | fixed | names
parents = st.builds(
    lambda some, expires, who: replace(KEY, models=some, expires_at=expires, dimensions=who),
    st.none() | st.frozensets(st.sampled_from(MODELS)),
    st.none() | st.floats(NOW - 1e6, NOW + 1e7),
    st.none() | st.builds(KeyDimensions, st.none(), st.dictionaries(st.sampled_from(NAMED), st.just("x"))),
)


def is_within(child: ApiKey, parent: ApiKey) -> None:
    for model in MODELS:
        assert parent.allows(model) or not child.allows(model)
    for at in (NOW - 2e6, NOW, NOW + 5e6, NOW + 2e7):
        assert parent.live(at) or not child.live(at)
    assert child.caps[: len(parent.caps)] == parent.caps
    assert parent.uses_stored or not child.uses_stored
    before, after = parent.dimensions or KeyDimensions(), child.dimensions or KeyDimensions()
    assert before.fixed.items() <= after.fixed.items()
    assert before.sources == after.sources
    limited = ("models", "expires_at", "dimensions", "caps", "uses_stored", "holder", "branch_ids")
    of_parent: dict[str, Any] = {name: getattr(parent, name) for name in limited}
    assert replace(child, **of_parent) == parent, "nothing else differs"


@given(parents, st.lists(any_caveat, max_size=6), st.none() | st.floats(NOW - 1e6, NOW + 1e7))
def test_no_caveat_widens(parent: ApiKey, caveats: list[str], until: float | None) -> None:
    text, before = NARROWABLE, replace(parent, expires_at=_first(parent.expires_at, until))
    for caveat in caveats:
        text = forged(text, caveat.encode())
        child = meant(text, parent, until)
        if child is None:
            return
        is_within(child, before)
        before = child


def _first(*ends: float | None) -> float | None:
    return min((one for one in ends if one is not None), default=None)


@given(st.lists(any_caveat, min_size=1, max_size=4), st.data())
def test_who_has_a_narrowed_key_can_take_no_caveat_away(caveats: list[str], data: st.DataObject) -> None:
    text = forged(NARROWABLE, *(one.encode() for one in caveats))
    parts = parse(text)
    assert parts is not None
    at = data.draw(st.integers(0, len(caveats) - 1))
    other = data.draw(any_caveat).encode()
    known = {parts.signature, *narrowing.signatures(parts.signature, (other,))}
    tampered = [
        (*parts.caveats[:at], *parts.caveats[at + 1 :]),
        (*parts.caveats[:at], other, *parts.caveats[at + 1 :]),
        (*parts.caveats[:at], other, *parts.caveats[at:]),
        parts.caveats[::-1],
        (b"".join(parts.caveats),),
        (),
    ]
    for some in tampered:
        if some == parts.caveats or some == (*parts.caveats, other):
            continue
        for signature in known:
            assert meant(PresentedKey(KEY_ID, some, signature).text()) is None


def test_a_cap_is_one_for_all_keys_that_are_made_from_it() -> None:
    capped = narrowed_text(NARROWABLE, ["name=ci", "usd=2"])
    first, second = (meant(narrowed_text(capped, more)) for more in (["usd=1", "run=1"], ["run=2", "usd=1.50"]))
    assert first is not None
    assert second is not None
    assert first.caps[0] == second.caps[0]
    assert first.caps[1].value_id != second.caps[1].value_id
    assert [one.nusd for one in (*first.caps, *second.caps)] == [2 * 10**9, 10**9, 2 * 10**9, 15 * 10**8]
    renamed = meant(narrowed_text(capped, ["name=cd"]))
    assert renamed is not None
    assert renamed.caps == first.caps[:1], "else a holder would get a new cap with each name"
    other = meant(narrowed_text(NARROWABLE, ["name=cd", "usd=2"]))
    assert other is not None
    assert other.caps[0].value_id != first.caps[0].value_id
    assert parse(capped) is not None
    shown = "".join(one.value_id for one in first.caps)
    assert not any(part.signature.hex()[:16] in shown for part in [parse(capped)] if part is not None)


def test_its_holder_and_its_branch() -> None:
    child = narrowed_text(NARROWABLE, ["name=ci", "run=1"])
    first, deeper, sibling = (
        meant(one) for one in (child, narrowed_text(child, ["usd=1"]), narrowed_text(NARROWABLE, ["name=cd", "run=1"]))
    )
    assert first is not None
    assert deeper is not None
    assert sibling is not None
    assert KEY.holder_id == KEY_ID
    assert len({KEY_ID, first.holder_id, deeper.holder_id, sibling.holder_id}) == 4
    assert first.branch_ids == deeper.branch_ids != sibling.branch_ids
    assert (len(first.branch_ids), KEY.branch_ids) == (1, ())
    named = meant(narrowed_text(child, ["usd=1", "name=job", "name=again"]))
    assert named is not None
    assert (named.branch_ids[0], len(named.branch_ids)) == (first.branch_ids[0], 3)
    unnamed = meant(narrowed_text(NARROWABLE, ["run=1", "usd=1"]))
    assert unnamed is not None
    assert len(unnamed.branch_ids) == 1, "its first caveat"


@pytest.mark.parametrize(
    "caveat",
    [
        b"", b"models", b"models=", b"models=a,,b", b"expires=soon", b"expires=", b"usd=-1", b"usd=", b"usd=nan",
        b"usd=1e99", b"run=", b"run=\n", b"end_user= ", b"tag:team=red", b"scope=all", b"Models=a", b" models=a",
        b"name=", b"name=" + b"x" * 129, b"cap=1", b"stored=all", b"stored", b"\xff\xfe", b"name=" + b"x" * 2_000,
    ],
)  # fmt: skip
def test_an_unknown_or_invalid_caveat_makes_a_key_invalid(caveat: bytes) -> None:
    assert meant(forged(NARROWABLE, b"models=a", caveat)) is None
    if caveat.isascii():
        with pytest.raises(InvalidCaveatError):
            narrowed_text(NARROWABLE, [caveat.decode()])


@pytest.mark.parametrize(
    "caveats",
    [("run=1", "run=2"), ("end_user=a", "end_user=b"), ("usd=1",) * (len(CAPS) + 1)],
    ids=["run", "end user", "caps"],
)
def test_caveats_that_contradict_each_other(caveats: tuple[str, ...]) -> None:
    assert meant(forged(NARROWABLE, *(one.encode() for one in caveats))) is None
    assert meant(forged(NARROWABLE, caveats[0].encode(), caveats[0].encode())) is not None
    of_operator = replace(KEY, dimensions=KeyDimensions(None, {"run": "fixed"}))
    assert meant(narrowed_text(NARROWABLE, ["run=other"]), of_operator) is None


def test_what_the_provider_stores_can_be_left_out() -> None:
    child = meant(narrowed_text(NARROWABLE, ["stored=none"]))
    assert child is not None
    assert KEY.shares(KEY_ID, "other")
    assert not child.shares(KEY_ID, "other")
    assert not replace(child, project_id="p").shares("other", "p")


def test_a_cap_is_shown_by_its_id() -> None:
    child = meant(narrowed_text(NARROWABLE, ["usd=1"]))
    assert child is not None
    shown = ShownDimension(child.caps[0].value_id, None)
    assert shown.text == shown.text_with_id == child.caps[0].value_id


def test_its_form() -> None:
    assert meant(NARROWABLE) == KEY
    assert is_ours(NARROWABLE)
    child = narrowed_text(NARROWABLE, ["models=a"])
    head, signature = child.rsplit(".", 1)
    for other in (child[:-1], child + "A", head, f"{head}.{signature}=", f"{head}..{signature}", child + "\n", "tw-."):
        assert parse(other) is None, other
    assert parse(f"{head}.QQ.{signature}") is not None
    assert parse(f"{head}.QR.{signature}") is None, "another text of the same bytes"
    assert parse(f"{head}{'.QQ' * CAVEATS_MAX}.{signature}") is None
    with pytest.raises(ValueError, match=f"at most {CAVEATS_MAX} caveats"):
        narrowed_text(NARROWABLE, ["name=x"] * (CAVEATS_MAX + 1))
    with pytest.raises(ValueError, match="characters"):
        narrowed_text(NARROWABLE, [f"models={'m' * 1_000}"] * 4)
    with pytest.raises(ValueError, match="not narrowable"):
        narrowed_text("tw-" + "x" * 43, ["models=a"])


def test_no_log_shows_a_part_of_it() -> None:
    child = narrowed_text(NARROWABLE, ["models=a", "usd=1"])
    assert masked(f"key {child}.") == "key tw-…."
    assert child.rsplit(".", 1)[1] not in repr(parse(child))


def test_another_pepper_or_digest_gives_another_root() -> None:
    roots: list[Any] = [narrowing.root_key(d, p) for d in (b"d" * 32, b"e" * 32) for p in (PEPPER, b"q" * 32)]
    assert len({ROOT, *roots}) == 4
