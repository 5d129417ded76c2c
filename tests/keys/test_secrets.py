"""A secret is seen once."""

from __future__ import annotations

import pickle
import stat
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.keys.secrets import BadPepperError, Secret, digest, hint, load_pepper, new_secret, parse
from tests.support.processes import CLEAN

# Of 0.1, without a checksum.
EARLIER = "tw-" + "aB3_-" * 8 + "xyz"


def test_new_secrets_have_256_bits_and_the_form_that_is_parsed() -> None:
    made = {new_secret().reveal() for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(parse(secret) == secret and len(secret) == 52 for secret in made)
    assert {c for secret in made for c in secret} == set(string.ascii_letters + string.digits + "-_")


def test_a_secret_of_an_earlier_version_stays_one() -> None:
    assert parse(EARLIER) == EARLIER


@pytest.mark.parametrize("place", [3, 20, 45, 46, 51])
def test_a_typing_error_is_seen_without_a_look(place: int) -> None:
    secret = new_secret().reveal()
    other = "x" if secret[place] != "x" else "y"
    assert parse(secret[:place] + other + secret[place + 1 :]) is None
    assert parse(secret[:-1]) is None, "one character is missing"
    assert parse(secret + "A") is None


@given(st.text() | st.text(alphabet="tw-AZaz09_", min_size=44, max_size=48).map("tw-".__add__))
def test_nothing_else_is_parsed(text: str) -> None:
    well_formed = (
        len(text) == 46 and text.startswith("tw-") and set(text) <= set(string.ascii_letters + string.digits + "-_")
    )
    assert parse(text) == (text if well_formed else None)


@pytest.mark.parametrize("ending", ["\n", "\r\n", " ", "\0", "é"])
def test_no_ending_is_overlooked(ending: str) -> None:
    assert parse(new_secret().reveal() + ending) is None
    assert parse(new_secret().reveal()[: -len(ending)] + ending) is None


def test_a_secret_does_not_show_itself() -> None:
    secret = new_secret()
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>50}",
        repr([secret]),
        repr({"key": secret}),
        format(secret),
    ]
    assert not any(secret.reveal()[3:10] in text for text in shown)
    assert pickle.loads(pickle.dumps(secret)) == secret  # to a worker process
    assert secret == Secret(secret.reveal())
    assert secret != new_secret()
    assert secret != secret.reveal()


def test_the_digest_depends_on_the_pepper_and_the_hint_shows_little() -> None:
    secret = new_secret().reveal()
    assert digest(secret, b"p" * 32) != digest(secret, b"q" * 32)
    assert len(digest(secret, b"p" * 32)) == 32
    assert hint(secret) == f"tw-…{secret[-4:]}"


def test_the_pepper_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "pepper"
    pepper = load_pepper(path)
    assert len(pepper) == 32
    assert load_pepper(path) == pepper
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["pepper"]


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 31])
def test_an_empty_or_short_pepper_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pepper"
    path.write_bytes(content)
    with pytest.raises(BadPepperError, match="pepper"):
        load_pepper(path)
    assert path.read_bytes() == content


@pytest.mark.process
def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    with CLEAN.Pool(2) as pool:
        peppers = pool.map(load_pepper, [tmp_path / f"pepper{i // 8}" for i in range(64)], chunksize=1)
    assert all(peppers[i] == load_pepper(tmp_path / f"pepper{i // 8}") for i in range(64))
