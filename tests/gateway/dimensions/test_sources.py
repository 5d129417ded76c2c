"""Dimensions from what clients send: every row of the table, hostile values, precedence."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.billing.dimensions import PRESETS, RUN_CAP
from proxy.gateway.dimensions import sources
from proxy.gateway.dimensions.sources import COMBINATIONS_MAX, SOURCES, OwnHeaders, SourceReader
from proxy.http.errors import ApiError
from proxy.metering.dialects import FAMILIES
from tests.gateway.dimensions.clients import proxied

OWN = OwnHeaders()
ALL = SourceReader(PRESETS, OWN)
DEVICE, ACCOUNT, SESSION = "ad" * 32, "0a1b2c3d-0000-4000-8000-000000000001", "eba7676d-4c5a-4e8a-8f82-9fc2c50cf6e1"
CLAUDE_CODE = json.dumps({"device_id": DEVICE, "account_uuid": "", "session_id": SESSION})

Headers = dict[str, str]


def read(
    headers: Headers | None = None,
    document: Any = None,
    *,
    dialect: str = "openai.chat",
    reader: SourceReader = ALL,
) -> dict[str, str]:
    return dict(reader.read(proxied(headers or {}), dialect, document or {}))


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"X-Tokenweir-End-User": " alice "}, {"end_user": "alice"}),
        ({"x-tokenweir-session": "s", "x-tokenweir-run": "42"}, {"session": "s", "run": "42"}),
        ({"x-tokenweir-run": "42; max=2.00"}, {"run": "42", RUN_CAP: "2"}),
        ({"x-tokenweir-run": "42;max = 0.000000001"}, {"run": "42", RUN_CAP: "0.000000001"}),
        ({"x-tokenweir-tags": "team=red, Stage = a=b,"}, {"tag:team": "red", "tag:stage": "a=b"}),
        ({"X-Claude-Code-Session-Id": SESSION}, {"session": SESSION}),
        ({"session_id": "s", "originator": "codex_cli_rs"}, {"session": "s", "tag:originator": "codex_cli_rs"}),
        ({"session-id": "s"}, {"session": "s"}),
        ({"x-opencode-session": "s", "x-opencode-project": "p"}, {"session": "s", "tag:project": "p"}),
        ({"x-session-affinity": "ses_1"}, {"session": "ses_1"}),
        ({"X-Amp-Thread-Id": "T-1"}, {"session": "T-1"}),
        ({"x-litellm-end-user-id": "bob", "x-litellm-customer-id": "alice"}, {"end_user": "alice"}),
        ({"x-litellm-tags": "project:acme,env=prod,nightly"},
         {"tag:project": "acme", "tag:env": "prod", "tag:nightly": "true"}),
        ({"x-litellm-session-id": "s", "x-litellm-trace-id": "t"}, {"session": "s", "run": "t"}),
        ({"Helicone-User-Id": "u", "Helicone-Session-Id": "s", "Helicone-Property-App": "x", "Helicone-Auth": "Bearer"},
         {"end_user": "u", "session": "s", "tag:app": "x"}),
        ({"Helicone-Property-Feature": "chat"}, {"tag:feature": "chat"}),
        ({"x-portkey-metadata": '{"_user":"u","env":"prod","n":7,"deep":{"a":1},"on":true}', "x-portkey-trace-id": "t"},
         {"end_user": "u", "tag:env": "prod", "tag:n": "7", "run": "t"}),
        ({"x-gemini-api-privileged-user-id": "u"}, {"end_user": "u"}),
        ({"baggage": "user.id=al%20ice;p=1, session.id = s ,tokenweir.run=7,tokenweir.tag.Team=red,sentry-x=y"},
         {"end_user": "al ice", "session": "s", "run": "7", "tag:team": "red"}),
    ],
)  # fmt: skip
def test_headers(headers: Headers, found: dict[str, str]) -> None:
    assert read(headers) == found
    assert read(headers) == found, "by the remembered names"


@pytest.mark.parametrize(
    ("dialect", "document", "found"),
    [
        ("openai.chat", {"user": "u"}, {"end_user": "u"}),
        ("openai.responses", {"user": "u", "safety_identifier": "s"}, {"end_user": "s"}),
        ("openai.chat", {"metadata": {"team": "red", "no name!": "x", "n": 3}}, {"tag:team": "red", "tag:n": "3"}),
        ("openai.chat", {"metadata": {"tags": ["a", "b:c", 7]}}, {"tag:a": "true", "tag:b": "c"}),
        ("openai.chat", {"litellm_session_id": "s", "litellm_metadata": {"user": "u"}},
         {"session": "s", "end_user": "u"}),
        ("anthropic.messages", {"metadata": {"user_id": "u-7"}}, {"end_user": "u-7"}),
        ("anthropic.messages", {"metadata": {"user_id": "u-7", "x": "no tag"}}, {"end_user": "u-7"}),
        ("anthropic.messages", {"metadata": {"user_id": CLAUDE_CODE}}, {"end_user": DEVICE, "session": SESSION}),
        ("anthropic.messages", {"metadata": {"user_id": CLAUDE_CODE.replace('""', f'"{ACCOUNT}"')}},
         {"end_user": ACCOUNT, "session": SESSION}),
        ("anthropic.messages", {"metadata": {"user_id": f"user_{DEVICE}_account_{ACCOUNT}_session_{SESSION}"}},
         {"end_user": ACCOUNT, "session": SESSION}),
        ("anthropic.messages", {"metadata": {"user_id": f"user_{DEVICE}_account__session_{SESSION}"}},
         {"end_user": DEVICE, "session": SESSION}),
        ("gemini.generate", {"labels": {"team": "red"}}, {"tag:team": "red"}),
        ("bedrock.converse", {"requestMetadata": {"team": "red"}}, {"tag:team": "red"}),
        ("openai.responses", {"client_metadata": {"session_id": "s"}}, {"session": "s"}),
    ],
)  # fmt: skip
def test_members_of_the_body(dialect: str, document: Any, found: dict[str, str]) -> None:
    assert read(document=document, dialect=dialect) == found


def test_an_explicit_source_precedes_a_general_one() -> None:
    headers = {"x-claude-code-session-id": "header", "baggage": "user.id=bag", "x-tokenweir-session": "ours"}
    document = {"metadata": {"user_id": CLAUDE_CODE}, "user": "u"}
    assert read(headers, document, dialect="anthropic.messages") == {"session": "ours", "end_user": DEVICE}
    del headers["x-tokenweir-session"]
    assert read(headers, document)["session"] == "header"


def test_at_most_eight_tags_and_ours_first() -> None:
    own, theirs = ",".join(f"a{n}=x" for n in range(6)), {f"b{n}": "x" for n in range(20)}
    found = read({"x-tokenweir-tags": own}, {"metadata": theirs, "user": "u"})
    assert sorted(found) == [*(["end_user"]), *sorted(f"tag:a{n}" for n in range(6)), "tag:b0", "tag:b1"]


def test_only_the_given_presets_are_read() -> None:
    headers = {"x-tokenweir-run": "", "helicone-user-id": "u", "baggage": "user.id=b"}
    assert read(headers, {"user": "x"}, reader=SourceReader(["baggage"], OWN)) == {"end_user": "b"}
    assert read(headers, {"user": "x"}, reader=SourceReader([], OWN)) == {}


def test_our_headers_can_have_other_names() -> None:
    reader = SourceReader(PRESETS, OwnHeaders(end_user="x-team-member"))
    assert read({"X-Team-Member": "u", "x-tokenweir-end-user": "no"}, reader=reader) == {"end_user": "u"}


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-tokenweir-end-user", ""), ("x-tokenweir-session", "a\x01"), ("x-tokenweir-run", "42; max=two"),
        ("x-tokenweir-run", "42; max=-1"), ("x-tokenweir-run", "42; max=1e999990"),
        ("x-tokenweir-run", "42; max="), ("x-tokenweir-run", "42; min=1"),
        ("x-tokenweir-run", "42, max=1"), ("x-tokenweir-run", "42 Max = 1"), ("x-tokenweir-run", "42,max=1;max=2"),
        ("x-tokenweir-run", "42; max=1; max=2"), ("x-tokenweir-run", "; max=1"), ("x-tokenweir-run", "42; max=1e9"),
        ("x-tokenweir-tags", "team"), ("x-tokenweir-tags", "1a=x"), ("x-tokenweir-tags", "a="),
        ("x-tokenweir-tags", ",".join(f"a{n}=x" for n in range(9))), ("x-tokenweir-run", "\udcff"),
    ],
)  # fmt: skip
def test_an_invalid_header_of_ours_is_refused(header: str, value: str) -> None:
    with pytest.raises(ApiError, match=header) as refused:
        read({header: value})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, header, "invalid_header")
    assert value not in str(refused.value) or len(value) < 3


def test_a_header_of_ours_that_is_sent_twice_is_refused() -> None:
    """Joined, it would be somebody else."""
    twice = CIMultiDictProxy(CIMultiDict([("x-tokenweir-end-user", "a"), ("X-Tokenweir-End-User", "b")]))
    with pytest.raises(ApiError, match="x-tokenweir-end-user: must be sent once"):
        ALL.read(twice, "openai.chat", {})
    tags = CIMultiDictProxy(CIMultiDict([("x-tokenweir-tags", "a=1"), ("x-tokenweir-tags", "b=2")]))
    assert ALL.read(tags, "openai.chat", {}) == {"tag:a": "1", "tag:b": "2"}


HOSTILE = [
    "", " ", "\x00", "\udcff", "x" * 100_000, "{", "[1]", '{"_user":{"a":1}}', "[" * 9000, "=", ",,,", "%", "a=%ff",
    '{"session_id":1}', '{"session_id":"' + "s" * 9000 + '"}',
]  # fmt: skip
BODIES = [
    *HOSTILE,
    7,
    10**40,
    -1,
    1.5,
    None,
    True,
    [],
    {},
    [[[]]],
    {"a": {"b": []}},
    dict.fromkeys(map(str, range(999)), "x"),
]


def test_what_others_send_never_fails() -> None:
    for source in SOURCES:
        if source.place is sources.Place.HEADER:
            for value in HOSTILE:
                found = read({source.name.replace("*", "x"): value})
                assert all(name and len(value) <= 256 for name, value in found.items())
            continue
        for body in BODIES:
            *path, last = source.name.split(".")
            document: Any = {last: body}
            for member in reversed(path):
                document = {member: document}
            for family in FAMILIES:
                found = read(document=document, dialect=f"{family}.x")
                assert len(found) <= 8
                assert all(value.isprintable() and 0 < len(value) <= 256 for value in found.values())


def test_remembered_names_are_bounded() -> None:
    for number in range(2 * COMBINATIONS_MAX):
        read({f"x-{number}": "", "user-agent": "x"})
    assert len(ALL._combinations) <= COMBINATIONS_MAX


def test_a_request_without_sources_gives_the_one_empty_value() -> None:
    headers = proxied({"User-Agent": "x", "Authorization": "y"})
    assert ALL.read(headers, "openai.chat", {"model": "m", "messages": []}) is sources.NOTHING


def test_the_table_has_every_preset_in_their_order_of_precedence() -> None:
    assert ("tokenweir", *[preset for preset, _ in groupby(SOURCES, key=lambda one: one.preset)]) == PRESETS
    assert {family for one in SOURCES for family in one.families} <= set(FAMILIES)
    assert all(one.name == one.name.lower() for one in SOURCES if one.place is sources.Place.HEADER)
