"""The settings of operators: who signs in to the console, and what each may do.

Invariants: a secret that is easy to guess is rejected. Of the users of an identity provider, those without a role by
`roles` cannot sign in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from proxy.foundation.addresses import is_tls_or_loopback
from proxy.foundation.secret import Secret
from proxy.settings.fields import FieldPath, FieldType, names, setting, settings_section
from proxy.settings.kinds import checked, choice, secret, text, texts
from proxy.settings.outbound import OutboundSettings
from proxy.settings.urls import url

# The audit log names the issuer and the subject in 256 characters.
ISSUER_CHARS_MAX = 100
_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)
_CLAIM = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}", re.ASCII)
_DOMAIN = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+", re.ASCII)
_LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,64}")
_VALUE = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


# 32 hexadecimal digits are 128 bits; `openssl rand -hex 32` prints twice that.
SECRET_CHARS_MIN = 32
# Random text of that length has more; "changeme" four times has seven.
DISTINCT_CHARS_MIN = 10


def admin_secret() -> FieldType:
    """A secret that is long and random."""

    def is_random(value: Secret) -> bool:
        text = value.reveal()
        return len(text) >= SECRET_CHARS_MIN and len(set(text)) >= DISTINCT_CHARS_MIN

    why = f"too easy to guess: must be at least {SECRET_CHARS_MIN} random characters; "
    return checked(secret(), is_random, why + "generate it with `openssl rand -hex 32`")


class OperatorRole(StrEnum):
    """What an operator may do; each role includes those before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: OperatorRole) -> bool:
        """Whether this role may do what `other` may."""
        return self.rank >= other.rank

    @property
    def rank(self) -> int:
        """0 for the role that may do least."""
        return list(OperatorRole).index(self)


# `admin` is the operator of `admin.secret`.
OPERATOR_NAME = re.compile(r"(?!admin$)[a-z0-9][a-z0-9_.@-]{0,63}", re.ASCII)


@settings_section
class OperatorSettings:
    """One person who signs in to the console."""

    name: str
    secret: Secret = setting(admin_secret(), "this operator's sign-in secret, 32 characters or more")
    role: OperatorRole = setting(
        choice(OperatorRole),
        "`read`: all reports; `operate`: also keys, accounts, limits and running streams; `admin`: also money",
        default=OperatorRole.READ,
    )


def secure_url() -> FieldType:
    """A URL to which nothing is sent in the clear."""
    return checked(url(), is_tls_or_loopback, "must be https://, or http:// of this machine")


def claim_name() -> FieldType:
    """The name of a claim; `a.b` is the member `b` of `a`."""
    return text(_CLAIM, "the name of a claim")


def issuer() -> FieldType:
    """The URL of an identity provider, without a slash at its end."""
    return checked(
        secure_url(), lambda value: len(value) <= ISSUER_CHARS_MAX, f"must have at most {ISSUER_CHARS_MAX} characters"
    )


def _roles() -> FieldType:
    """Value of a claim → role."""
    role, description = choice(OperatorRole), "a value of the claim, 1 to 256 characters"

    def read(raw: object, at: FieldPath) -> dict[str, OperatorRole]:
        return {name: role.read(below, at.under(name)) for name, below in names(raw, at, _VALUE, description).items()}

    schema = {"type": "object", "additionalProperties": role.schema}
    return FieldType(f"value: {role.description}", read, schema=schema)


@settings_section
class OidcSettings(OutboundSettings):
    """An identity provider, and the roles of its users in the console."""

    issuer: str = setting(
        issuer(), "URL of the identity provider; its configuration is at `/.well-known/openid-configuration` below it"
    )
    client_id: str = setting(
        text(_CLIENT_ID, "1 to 256 visible ASCII characters"), "the console's client id at the provider"
    )
    client_secret: Secret = setting(secret(), "the console's client secret at the provider")
    label: str = setting(
        text(_LABEL, "1 to 64 characters"), "the text after `Sign in with` on the button", default="single sign-on"
    )
    scopes: frozenset[str] = setting(
        texts(_SCOPE, "a scope"),
        "the requested scopes; `openid` is always added",
        default=frozenset({"email", "profile"}),
        shown="`[email, profile]`",
    )
    name_claim: str = setting(
        claim_name(),
        "the claim with the operator's name, which the console shows and, with issuer and subject, the audit log",
        default="email",
    )
    role_claim: str = setting(
        claim_name(),
        "the claim whose values have a role in `roles`: a text or a list of texts; `a.b` is the member `b` of `a`",
    )
    roles: Mapping[str, OperatorRole] = setting(
        _roles(),
        "values of `role_claim`, each with its role; the highest role applies; a user without any cannot sign in",
    )
    email_domains: frozenset[str] = setting(
        texts(_DOMAIN, "a domain in lower case"),
        "only users with a verified e-mail address in one of these domains can sign in",
        default=frozenset(),
        shown="all",
    )
