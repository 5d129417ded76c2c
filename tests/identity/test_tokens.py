"""Which tokens are accepted. Everything that an attacker can write into one."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from proxy.identity.documents import IdentityProviderError
from proxy.identity.keys import IssuerKeys
from proxy.identity.tokens import InvalidTokenError, TokenVerifier
from tests.support.identity_provider import SigningKey, ec_key, rsa_key, unsigned

ISSUER, AUDIENCE = "https://sso.example", "console"


def claims(**changed: Any) -> dict[str, Any]:
    now = int(time.time())
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": "user-1", "iat": now, "exp": now + 60, **changed}
    return {name: value for name, value in made.items() if value is not None}


def verifier(*keys: dict[str, Any]) -> TokenVerifier:
    async def fetch() -> Any:
        return {"keys": list(keys)}

    return TokenVerifier(ISSUER, AUDIENCE, IssuerKeys(fetch))


async def refused(token: str, *keys: dict[str, Any]) -> str:
    with pytest.raises(InvalidTokenError) as caught:
        await verifier(*keys).claims(token)
    return str(caught.value)


async def test_a_token_of_each_kind_of_key_is_accepted() -> None:
    keys = [rsa_key().jwk, ec_key().jwk]
    for key in (rsa_key(), ec_key(), SigningKey("rsa-1", "PS512", rsa_key().private)):
        assert (await verifier(*keys).claims(key.signed(claims(aud=["other", AUDIENCE]))))["sub"] == "user-1"
    without_id = SigningKey(None, "ES256", ec_key().private)
    other_curve = jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True)
    assert await verifier(*keys, other_curve).claims(without_id.signed(claims()))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"iss": "https://sso.example/"}, "another issuer"), ({"iss": None}, "lacks a claim"),
        ({"aud": "other"}, "another audience"), ({"aud": [AUDIENCE + "2"]}, "another audience"),
        ({"aud": None}, "lacks a claim"), ({"aud": {"console": 1}}, "another audience"),
        ({"exp": int(time.time()) - 61}, "expired"), ({"exp": None}, "lacks a claim"), ({"exp": "soon"}, "malformed"),
        ({"exp": float("inf")}, "malformed"), ({"iat": int(time.time()) + 9_000}, "compare the clocks"),
        ({"nbf": int(time.time()) + 9_000}, "compare the clocks"), ({"iat": None}, "lacks a claim"),
        ({"sub": None}, "lacks a claim"), ({"sub": 7}, "malformed"),
    ],
)  # fmt: skip
async def test_a_claim_that_is_wrong_is_named(changed: dict[str, Any], why: str) -> None:
    assert why in await refused(ec_key().signed(claims(**changed)), ec_key().jwk)


async def test_clocks_may_differ_by_a_minute() -> None:
    now = int(time.time())
    assert await verifier(ec_key().jwk).claims(ec_key().signed(claims(iat=now + 50, exp=now - 50)))


async def test_no_algorithm_and_no_secret_signs_a_token() -> None:
    """`alg: none`, and HS256 with what everybody knows of the public key."""
    jwk = rsa_key().jwk
    public = rsa_key().private.public_key()
    for name in ("none", "None", "NONE", "nOnE", "", None, 5, ["RS256"], "HS256", "HS512", "ES256K", "RS1"):
        assert "asymmetric" in await refused(unsigned({"alg": name, "kid": "rsa-1"}, claims()), jwk)
    for secret in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), b"", jwk["n"].encode(),
    ):  # fmt: skip
        token = unsigned({"alg": "HS256", "kid": "rsa-1"}, claims())
        what = token.rpartition(".")[0]
        mac = hmac.new(secret, what.encode(), hashlib.sha256).digest()
        forged = unsigned({"alg": "HS256", "kid": "rsa-1"}, claims(), mac)
        assert "asymmetric" in await refused(forged, jwk, {"kty": "oct", "k": "c2VjcmV0", "kid": "rsa-1"})


async def test_the_key_is_the_issuers_and_of_its_kind() -> None:
    """A token cannot bring its key, name another's, or use a key for what it is not."""
    foreign = SigningKey("ec-1", "ES256", ec_key("foreign").private)
    assert "wrong signature" in await refused(foreign.signed(claims()), ec_key().jwk)
    for header in ({"jwk": foreign.jwk}, {"jku": "http://127.0.0.1:1/jwks"}, {"x5u": "http://127.0.0.1:1/x"}):
        assert "wrong signature" in await refused(foreign.signed(claims(), **header), ec_key().jwk)
    token = ec_key().signed(claims())
    for wrong in (
        {"kid": "ec-2"}, {"alg": "ES384"}, {"crv": "P-384"}, {"kty": "RSA"}, {"crv": "P-256K"}, {"x": "AAAA"},
        {"x": None},
    ):  # fmt: skip
        assert "known key" in await refused(token, {**ec_key().jwk, **wrong}, rsa_key().jwk)
    for unusable in ({"use": "enc"}, {"key_ops": ["encrypt"]}, {"key_ops": "verify"}, {"d": "AA"}):
        assert "known key" in await refused(token, {**ec_key().jwk, **unusable}, rsa_key().jwk)
    published = {**jwt.algorithms.ECAlgorithm.to_jwk(ec_key().private, as_dict=True), "kid": "ec-1"}  # not a secret
    assert "known key" in await refused(token, published, rsa_key().jwk)
    assert "known key" in await refused(token, ec_key().jwk, ec_key("other").jwk | {"kid": "ec-1"})
    assert "known key" in await refused(SigningKey(None, "ES256", ec_key().private).signed(claims()),
                                        ec_key().jwk, ec_key("other").jwk)  # fmt: skip
    assert "wrong signature" in await refused(ec_key().signed(claims(), kid="rsa-1", alg="ES256")[:-8] + "AAAAAAAA",
                                              ec_key().jwk | {"kid": "rsa-1"})  # fmt: skip


async def test_keys_that_only_cost_time_are_not_used() -> None:
    token = rsa_key().signed(claims())
    for wrong in ({"n": rsa_key().jwk["n"] * 5}, {"e": "AQAB" * 3}):
        assert "known key" in await refused(token, {**rsa_key().jwk, **wrong}, ec_key().jwk)
    short = rsa_key("short", 1024)
    with pytest.warns(UserWarning, match="1024"):
        token = short.signed(claims())
    assert "too short" in await refused(token, short.jwk)


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "a.b.c", "é.é.é", "e30.e30.", unsigned([], {}), unsigned({"alg": "ES256"}, {}, b"x" * 64),  # type: ignore[arg-type]
     "A" * 70_000, ec_key().signed(claims()) + ".x", "\ud800.a.b", unsigned({"alg": "ES256", "kid": 7}, {})],
)  # fmt: skip
async def test_rubbish_is_refused(token: str) -> None:
    assert await refused(token, ec_key().jwk)


async def test_extensions_are_refused() -> None:
    for header in ({"crit": ["exp"], "exp": 1}, {"crit": []}, {"crit": "exp"}, {"crit": ["b64", "exp"]}):
        assert "malformed" in await refused(ec_key().signed(claims(), **header), ec_key().jwk)
    detached = unsigned({"alg": "ES256", "kid": "ec-1", "crit": ["b64"], "b64": False}, claims(), b"x" * 64)
    assert "malformed" in await refused(detached, ec_key().jwk)


async def test_a_signed_payload_that_is_no_object_is_refused() -> None:
    for payload in (b"[]", b"null", b"[" * 40_000, b"\xff", b""):
        token = jwt.api_jws.encode(payload, ec_key().private, "ES256", headers={"kid": "ec-1"})
        assert "malformed" in await refused(token, ec_key().jwk)


@pytest.mark.parametrize(
    "document", [None, [], {}, {"keys": {}}, {"keys": []}, {"keys": [1, None, "x"]}, {"keys": [{"kty": "EC"}] * 101}]
)
async def test_a_key_set_without_keys_is_an_error_of_the_provider(document: Any) -> None:
    async def fetch() -> Any:
        return document

    with pytest.raises(IdentityProviderError, match="no usable keys"):
        await IssuerKeys(fetch).of("ec-1", "ES256")


class Rotating:
    """Keys that change, and a clock."""

    def __init__(self) -> None:
        self.keys, self.now, self.fetched, self.is_down = [ec_key().jwk], 0.0, 0, False

    async def fetch(self) -> Any:
        self.fetched += 1
        if self.is_down:
            raise IdentityProviderError("down")
        return {"keys": self.keys}


async def test_keys_are_kept_and_new_ones_found() -> None:
    source = Rotating()
    keys = IssuerKeys(source.fetch, clock=lambda: source.now)
    for _ in range(3):
        assert await keys.of("ec-1", "ES256") is not None
    assert source.fetched == 1
    source.keys, source.now = [ec_key("other").jwk], 11.0
    assert await keys.of("other", "ES256") is not None  # a new key: not the kept ones
    assert await keys.of("ec-1", "ES256") is None  # rotated out
    for number in range(20):
        assert await keys.of(f"made-up-{number}", "ES256") is None
    assert source.fetched == 2  # who makes up names has no effect on the provider


async def test_keys_of_a_provider_that_is_down_are_used_for_a_day() -> None:
    source = Rotating()
    keys = IssuerKeys(source.fetch, clock=lambda: source.now)
    source.is_down = True
    for _ in range(2):
        with pytest.raises(IdentityProviderError, match="down"):
            await keys.of("ec-1", "ES256")
    assert source.fetched == 1
    source.is_down, source.now = False, 10.0
    assert await keys.of("ec-1", "ES256") is not None
    source.is_down, source.now = True, 86_000.0
    assert await keys.of("ec-1", "ES256") is not None
    source.now += 1_000.0
    with pytest.raises(IdentityProviderError, match="down"):
        await keys.of("ec-1", "ES256")
