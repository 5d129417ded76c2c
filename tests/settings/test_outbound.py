"""The settings of the way to a provider: its certificates, and an HTTP proxy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.settings import ForwardProxy, ProviderSettings, Secret, SettingsError, TlsSettings, from_environment, parse
from proxy.settings.cloud_auth import AwsAuthSettings

PASSWORD = "canary-pass/word"
ENV = {
    "KEY": "sk-1",
    "PASSWORD": "canary-pass%2Fword",
    "AUTH": "user:canary-pass%2Fword",
    "PROXY": "http://p.test:3128",
}
A: dict[str, Any] = {"name": "a", "api_key": "${KEY}"}
FROM_ENVIRONMENT = ForwardProxy("env.test", 3128, False, None)


def provider(more: Mapping[str, Any], env: Mapping[str, str] | None = None, **root: Any) -> ProviderSettings:
    section = {"base_url": "https://host.example/v1", "api_key": "${KEY}", **more}
    document = {"providers": {"p": section}, "models": {"*": {"provider": "p"}}, **root}
    read = parse(yaml.safe_dump(document), env=ENV | (env or {}), folder=Path("/etc/tokenweir"))
    return read.providers["p"]


def refusal(more: Mapping[str, Any], env: Mapping[str, str] | None = None) -> str:
    """What is said of the provider, with no value of a secret."""
    with pytest.raises(SettingsError) as refused:
        provider(more, env)
    assert "canary" not in str(refused.value)
    above, found, said = str(refused.value).partition("providers.p.")
    assert (above, bool(found)) == ("", True)
    return said


def test_certificates_are_files_beside_the_configuration() -> None:
    read = provider({"tls": {"ca_file": "ca.pem", "cert_file": "/run/c.pem", "key_file": "keys/c.key"}}).tls
    folder = Path("/etc/tokenweir")
    assert read == TlsSettings(ca_file=folder / "ca.pem", cert_file=Path("/run/c.pem"), key_file=folder / "keys/c.key")
    assert provider({}).tls == provider({"tls": {}}).tls == TlsSettings()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("http://p.test:3128", ForwardProxy("p.test", 3128, False, None)),
        ("http://p.test/", ForwardProxy("p.test", 80, False, None)),
        ("https://[::1]", ForwardProxy("::1", 443, True, None)),
        ("${PROXY}", ForwardProxy("p.test", 3128, False, None)),
        ("http://user:${PASSWORD}@p.test:1", ForwardProxy("p.test", 1, False, Secret(f"user:{PASSWORD}"))),
        ("http://${AUTH}@p.test:1", ForwardProxy("p.test", 1, False, Secret(f"user:{PASSWORD}"))),
        ("http://user@p.test:1", ForwardProxy("p.test", 1, False, Secret("user:"))),
        ("none", None),
    ],
)
def test_a_proxy_is_a_url_with_its_credentials(written: str, read: ForwardProxy | None) -> None:
    found = provider({"proxy": written}, {"HTTPS_PROXY": "http://env.test:3128"})
    assert found.proxy == read
    assert PASSWORD not in f"{found!r}"


def test_a_literal_password_needs_leave() -> None:
    written = {"proxy": "http://user:canary@p.test:1"}
    expected = ForwardProxy("p.test", 1, False, Secret("user:canary"))
    assert provider(written, allow_literal_secrets=True).proxy == expected


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"proxy": "socks5://p.test:1"}, "proxy: must be `none`, or the URL of an HTTP proxy"),
        ({"proxy": "p.test:3128"}, "proxy: must be"),
        ({"proxy": "http://"}, "proxy: must be"),
        ({"proxy": "http://p.test:0"}, "proxy: must be"),
        ({"proxy": "http://p.test:99999"}, "proxy: must be"),
        ({"proxy": "http://p.test/path"}, "proxy: must be"),
        ({"proxy": "http://p.test?canary"}, "proxy: must be"),
        ({"proxy": "http://p.test\r\nX: y"}, "proxy: must be"),
        ({"proxy": 3128}, "proxy: must be"),
        ({"proxy": "${NOT_SET}"}, "proxy: the environment variable NOT_SET is not set"),
        ({"proxy": "http://user:canary@p.test"}, "proxy: a password does not belong in this file"),
        ({"tls": {"verify": False}}, "tls.verify: unknown field"),
        ({"tls": {"ca_file": ""}}, "tls.ca_file: must be the path of a file"),
        ({"tls": {"key_file": "a.key"}}, "tls.cert_file: is missing"),
        ({"tls": {"cert_file": "a.pem"}, "byok": True}, "byok: cannot be combined with `auth` or `tls.cert_file`"),
        ({"tls": {"ca_file": "a.pem"}, "base_url": "http://host.example/v1"}, "tls: needs a `base_url` of https://"),
    ],
)
def test_what_is_wrong_is_named_and_not_quoted(more: Mapping[str, Any], says: str) -> None:
    assert refusal(more).startswith(says)


@pytest.mark.parametrize(
    ("base_url", "env", "read"),
    [
        ("https://host.example/v1", {"HTTPS_PROXY": "http://env.test:3128"}, FROM_ENVIRONMENT),
        ("https://host.example/v1", {"https_proxy": "env.test:3128"}, FROM_ENVIRONMENT),
        ("https://host.example/v1", {"HTTPS_PROXY": ""}, None),
        ("https://host.example/v1", {"HTTP_PROXY": "http://env.test:3128", "ALL_PROXY": "http://env.test:3128"}, None),
        ("http://host.example/v1", {"HTTPS_PROXY": "http://env.test:3128"}, None),
        *(
            (f"https://{host}/v1", {"HTTPS_PROXY": "http://env.test:3128", name: excepted}, read)
            for host, name, excepted, read in [
                ("localhost", "NO_PROXY", "", None),
                ("127.0.0.2", "NO_PROXY", "", None),
                ("[::1]:8443", "NO_PROXY", "", None),
                ("a.host.example", "NO_PROXY", "x.test,host.example", None),
                ("host.example:8443", "no_proxy", ".host.example", None),
                ("a.host.example", "no_proxy", "*.Host.example", None),
                ("ahost.example", "no_proxy", "host.example", FROM_ENVIRONMENT),
                ("host.example", "no_proxy", "a.host.example, 10.0.0.0/8", FROM_ENVIRONMENT),
                ("10.2.3.4", "no_proxy", "host.example, 10.0.0.0/8", None),
                ("10.2.3.4:8443", "no_proxy", "10.2.3.4", None),
                ("11.2.3.4", "no_proxy", "10.0.0.0/8", FROM_ENVIRONMENT),
                ("host.example", "no_proxy", "*", None),
                ("10.2.3.4", "no_proxy", "*", None),
            ]
        ),
    ],
)
def test_the_environment_s_proxy_is_the_default(base_url: str, env: Mapping[str, str], read: ForwardProxy) -> None:
    assert provider({"base_url": base_url}, env).proxy == read


def test_a_variable_that_is_no_proxy_is_named_and_not_quoted() -> None:
    refused = refusal({}, {"HTTPS_PROXY": "socks5://user:canary@p.test"})
    assert refused.startswith("proxy: the environment variable HTTPS_PROXY must be")


def test_without_a_file_it_holds_too() -> None:
    read, _ = from_environment({"OPENAI_API_KEY": "sk-1", "HTTPS_PROXY": "http://env.test:3128"})
    assert read.providers["openai"].proxy == FROM_ENVIRONMENT


def test_several_credentials() -> None:
    b = A | {"name": "b", "weight": 3, "rpm": 60, "tpm": 9000}
    read = provider({"api_key": None, "credentials": [A, b]})
    assert (read.api_key, [one.name for one in read.credentials]) == (None, ["a", "b"])
    one, other = read.credentials
    assert (one.weight, one.rpm, one.tpm, one.parallel) == (1, None, None, None)
    assert (other.api_key, other.weight, other.rpm, other.tpm) == (Secret("sk-1"), 3, 60, 9000)
    assert "sk-1" not in f"{read!r}"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "credentials: cannot be combined with `api_key`"),
        ({"api_key": None, "credentials": []}, "credentials: must be a list with at least one element"),
        ({"api_key": None, "credentials": ["${KEY}"]}, "credentials[0]: must be a mapping of fields"),
        ({"api_key": None, "credentials": [{"name": "a"}]}, "credentials[0].api_key: is missing"),
        ({"api_key": None, "credentials": [{"api_key": "${KEY}"}]}, "credentials[0].name: is missing"),
        ({"api_key": None, "credentials": [A | {"api_key": "canary"}]}, "credentials[0].api_key: a secret does"),
        ({"api_key": None, "credentials": [A | {"name": "A b"}]}, "credentials[0].name: must be"),
        ({"api_key": None, "credentials": [A] * 2}, "credentials[1].name: duplicate"),
        *(
            ({"api_key": None, "credentials": [A | {field: 0}]}, f"credentials[0].{field}: must")
            for field in ("weight", "rpm", "tpm", "parallel")
        ),
    ],
)
def test_what_is_wrong_with_credentials(more: Mapping[str, Any], says: str) -> None:
    assert refusal({"credentials": [A], **more}).startswith(says)


def test_credentials_of_a_cloud() -> None:
    """The host of AWS's services names the region."""
    aws = {"api_key": None, "base_url": "https://bedrock-runtime.us-east-1.amazonaws.com", "auth": {"aws": {}}}
    read = provider(aws).auth
    assert read
    assert read.aws
    assert (read.google, read.aws.service, read.aws.profile) == (None, "bedrock", None)
    keys = {"region": "eu-west-1", "access_key_id": "${KEY}", "secret_access_key": "${PASSWORD}"}
    read = provider(aws | {"auth": {"aws": keys}}).auth
    assert read is not None
    assert read.aws is not None
    assert read.aws.region_at("x.test") == "eu-west-1"
    assert "sk-1" not in f"{read!r}"
    google = {"api_key": None, "auth": {"google": {"credentials_file": "key.json"}}}
    read = provider(google).auth
    assert read is not None
    assert read.google is not None
    assert read.google.credentials_file == Path("/etc/tokenweir/key.json")


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("bedrock-runtime.us-east-1.amazonaws.com", "us-east-1"),
        ("bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("vpce-0a1-b2.bedrock-runtime.ap-southeast-2.vpce.amazonaws.com", "ap-southeast-2"),
        ("bedrock-mantle.eu-central-1.api.aws", "eu-central-1"),
        ("bedrock-runtime.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("bedrock-runtime.us-east-1.amazonaws.com.evil.test", None),
        ("localhost", None),
    ],
)
def test_a_host_of_aws_names_its_region(host: str, region: str | None) -> None:
    assert AwsAuthSettings().region_at(host) == region


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"auth": {"google": {}}}, "auth: cannot be combined with `api_key` or `credentials`"),
        ({"auth": {"google": {}}, "api_key": None, "byok": True}, "byok: cannot be combined with `auth`"),
        ({"auth": {}}, "auth: must have one of `aws` and `google`"),
        ({"auth": {"aws": {"region": "us-east-1"}, "google": {}}}, "auth: must have one of `aws` and `google`"),
        ({"auth": "aws"}, "auth: must be a mapping of fields"),
        ({"auth": {"aws": {}}}, "auth.aws.region: is missing: the host of `base_url` does not name it"),
        ({"auth": {"aws": {"region": "here"}}}, "auth.aws.region: must be a region"),
        ({"auth": {"aws": {"access_key_id": "${KEY}"}}}, "auth.aws: set both `access_key_id` and `secret_access_key`"),
        ({"auth": {"aws": {"session_token": "${KEY}"}}}, "auth.aws.session_token: needs `access_key_id`"),
        ({"auth": {"aws": {"access_key_id": "AKID"}}}, "auth.aws.access_key_id: a secret does not belong in this file"),
        (
            {"auth": {"aws": {"access_key_id": "${KEY}", "secret_access_key": "${KEY}", "profile": "p"}}},
            "auth.aws.profile: cannot be combined with `access_key_id`",
        ),
        ({"auth": {"azure": {}}}, "auth.azure: unknown field"),
    ],
)
def test_wrong_credentials_of_a_cloud_are_named(more: dict[str, Any], why: str) -> None:
    keyless = {} if "api_key" in why else {"api_key": None}
    assert refusal(keyless | more).startswith(why)
