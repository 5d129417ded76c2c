"""The section `identities`: what is refused with the name of the field, and what the how-to says."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.settings import Settings, SettingsError, parse
from proxy.settings.identities import OWNER_CLAIMS

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "sso-and-ci-without-keys.md"
GITHUB = "https://token.actions.githubusercontent.com"
SMALL: dict[str, Any] = {
    "providers": {"electron": {"base_url": "https://host.example/v1", "api_key": "${KEY}"}},
    "models": {"m": {"provider": "electron", "price": {"input": 1, "output": 2}}},
}
STAFF = {"issuer": "https://sso.example/", "audience": "tokenweir", "project": "staff"}


def read(identities: object, **env: str) -> Settings:
    document = yaml.safe_dump({**deepcopy(SMALL), "identities": identities})
    return parse(document, env={"KEY": "sk-1", **env}, folder=Path("/etc/tokenweir"))


def refusal(changed: dict[str, Any], name: str = "staff") -> str:
    made = {field: value for field, value in {**STAFF, **changed}.items() if value is not None}
    with pytest.raises(SettingsError) as refused:
        read({name: made})
    return str(refused.value).removeprefix(f"identities.{name}.")


def test_the_configurations_of_the_how_to_load() -> None:
    blocks = [yaml.safe_load(block.split("```")[0]) for block in HOW_TO.read_text().split("```yaml\n")[1:]]
    listed = [block["identities"] for block in blocks if "identities" in block]
    read_all = {name: one for section in listed for name, one in read(section).identities.items()}
    assert list(read_all) == ["staff", "github", "gitlab"]
    assert read_all["staff"].key.limits.budget_nusd == 500 * 10**9
    assert dict(read_all["github"].claims.dimensions()) == {
        "end_user": "actor", "run": "run_id", "tag:repository": "repository", "tag:workflow": "workflow",
    }  # fmt: skip
    assert read_all["gitlab"].require == {"namespace_path": {"octo-org"}, "ref_protected": {"true"}}


def test_the_proxy_and_the_certificates_are_those_of_the_address_of_the_keys() -> None:
    env = {"HTTPS_PROXY": "http://proxy.example:3128"}
    [one] = read({"staff": STAFF}, **env).identities.values()
    assert (one.issuer, one.proxy and one.proxy.url) == ("https://sso.example", "http://proxy.example:3128")
    here = {**STAFF, "jwks": "http://127.0.0.1:9/jwks"}
    [one] = read({"staff": here}, **env).identities.values()
    assert one.proxy is None
    assert refusal({"jwks": here["jwks"], "tls": {"ca_file": "ca.pem"}}) == "tls: needs a `jwks` of https://"


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"issuer": None}, "issuer: is missing"), ({"issuer": "http://sso.example"}, "issuer: must be https://"),
        ({"issuer": "https://ss\u043e.example"}, "issuer: must be a URL of visible ASCII"),
        ({"issuer": f"https://{'x' * 100}.example"}, "issuer: must have at most 100"),
        ({"audience": None}, "audience: is missing"), ({"audience": ""}, "audience: must be 1 to 256"),
        ({"jwks": "http://sso.example/jwks"}, "jwks: must be https://"),
        ({"project": None}, "project: give either this or `claims.project`"),
        ({"claims": {"project": "groups"}}, "project: give either this or `claims.project`"),
        ({"projects": {"a": "b"}}, "projects: needs `claims.project`"),
        ({"require": {"a b": "c"}}, "require.a b: must be the name of a claim"),
        ({"require": {"a": [1]}}, "require.a[0]: must be 1 to 256"), ({"require": {}}, "require: must be a mapping"),
        ({"claims": {"tags": {"9": "x"}}}, "claims.tags.9: the name of a tag"),
        ({"claims": {"tags": {f"t{n}": "x" for n in range(9)}}}, "claims.tags: must be at most 8"),
        ({"claims": {"user": "x"}}, "claims.user: unknown field"),
        ({"key": {"budget_window": "month"}}, "key.budget_window: not a budget window"),
        ({"key": {"byok": "half"}}, "key.byok: must be `free`, a share"),
        ({"key": {"models": ["*"]}}, "key.models[0]: must be the name of a model"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(changed: dict[str, Any], wrong: str) -> None:
    assert refusal(changed).startswith(wrong), refusal(changed)


def test_names_and_pairs_of_issuer_and_audience_are_unique() -> None:
    for name in ("Staff", "a_b", "-a", "a" * 33, "a.b"):
        assert "invalid name" in refusal({}, name)
    with pytest.raises(SettingsError, match=r"identities.two.audience: one has the same issuer and audience"):
        read({"one": STAFF, "two": {**STAFF, "issuer": "https://sso.example"}})


@pytest.mark.parametrize("issuer", OWNER_CLAIMS)
def test_an_issuer_of_everybody_needs_a_condition_that_names_its_owner(issuer: str) -> None:
    for changed in (
        {}, {"require": {"ref": "main"}}, {"project": None, "claims": {"project": "sub"}},
        {"project": None, "claims": {"project": "ref"}, "projects": {"main": "x"}},
    ):  # fmt: skip
        assert refusal({"issuer": issuer, **changed}).startswith("require: anybody can get a token from this issuer")
    for claim in OWNER_CLAIMS[issuer]:
        assert read({"ci": {**STAFF, "issuer": issuer, "require": {claim: "mine"}}}).identities
        by_claim = {"issuer": issuer, "audience": "x", "claims": {"project": claim}, "projects": {"mine": "x"}}
        assert read({"ci": by_claim}).identities
