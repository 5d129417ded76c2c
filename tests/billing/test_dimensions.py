"""Dimensions: their names, their values, their limits; from a record to the details of its entry."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from proxy.billing.batch import Terms
from proxy.billing.details import EntryDetails
from proxy.billing.dimensions import TAGS_MAX, VALUE_CHARS_MAX, dimension, tag, value_of, within_limits
from proxy.billing.record import Opened, Outcome
from proxy.billing.settlement import entry
from proxy.journal.recovery import sweep
from proxy.metering.estimator.estimate import Estimator
from tests.billing.records import OPENED, RECORD

IDS = {"end_user": "v_0123456789abcdef", "tag:team": "overflow"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("team", "tag:team"), (" Team ", "tag:team"), ("a.b_c-1", "tag:a.b_c-1"), ("x" * 32, "tag:" + "x" * 32),
        ("x" * 33, None), ("", None), ("1a", None), ("a b", None), ("ä", None), ("a\n", "tag:a"), ("tag:a", None),
    ],
)  # fmt: skip
def test_the_name_of_a_tag(text: str, name: str | None) -> None:
    assert tag(text) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("end_user", "end_user"), ("Session", "session"), ("run", "run"), ("tag:Team", "tag:team"),
        ("team", None), ("tag:", None), ("user", None), ("", None),
    ],
)  # fmt: skip
def test_a_dimension_that_an_operator_names(text: str, name: str | None) -> None:
    assert dimension(text) == name


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" alice@example.com ", "alice@example.com"), ("Zoë", "Zoë"), ("a b", "a b"), ("x" * 256, "x" * 256),
        ("", None), (" \t", None), ("a\nb", None), ("a\x00", None), ("\u202ea", None), ("\ud800", None),
    ],
)  # fmt: skip
def test_a_value(text: str, value: str | None) -> None:
    assert value_of(text) == value


def test_a_long_value_is_stored_as_its_digest() -> None:
    long = value_of("x" * (VALUE_CHARS_MAX + 1))
    assert long is not None
    assert long.startswith("sha256:")
    assert len(long) == len("sha256:") + 64
    assert long == value_of(" " + "x" * (VALUE_CHARS_MAX + 1)) != value_of("x" * (VALUE_CHARS_MAX + 2))


def test_the_first_of_each_dimension_and_eight_tags() -> None:
    tags = [(f"tag:t{number}", str(number)) for number in range(TAGS_MAX + 3)]
    kept = within_limits([("run", "1"), *tags, ("run", "2"), ("tag:t1", "other"), ("end_user", "alice")])
    assert kept == {"run": "1", **dict(tags[:TAGS_MAX]), "end_user": "alice"}


def test_the_entry_has_the_ids_and_one_without_dimensions_has_nothing() -> None:
    assert EntryDetails.of(entry(RECORD).details).dimensions is None
    assert b"dimensions" not in msgspec.json.encode(OPENED)
    opened = replace(OPENED, dimensions=IDS)
    assert EntryDetails.of(entry(replace(RECORD, opened=opened)).details).dimensions == IDS
    assert msgspec.json.decode(msgspec.json.encode(opened), type=Opened) == opened


def test_a_recovered_exchange_keeps_them() -> None:
    record = sweep(replace(OPENED, dimensions=IDS), None, Estimator())
    assert record.outcome is Outcome.CRASHED
    assert EntryDetails.of(entry(record).details).dimensions == IDS


def test_the_stored_terms_of_a_batch_of_an_earlier_version_have_none() -> None:
    stored = msgspec.to_builtins(Terms("m", "m", None, None, 3))
    assert "dimensions" not in stored
    assert msgspec.convert(stored, Terms).dimensions is msgspec.UNSET
