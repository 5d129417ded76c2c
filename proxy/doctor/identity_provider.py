"""Checks the identity provider of the console, and the issuers of clients' tokens. Invariant: a check makes two
requests, and begins no sign-in."""

from __future__ import annotations

import asyncio

from proxy.console.identity_sign_in import code_flow
from proxy.doctor.finding import CheckedDeployment, Finding, ok, warning
from proxy.identity.documents import ANSWER_S, IdentityProviderError
from proxy.keys.identities import issuer_keys

TITLE = "identity provider"
CHECK_S = 2 * ANSWER_S + 1


def check(case: CheckedDeployment) -> list[Finding]:
    """Check that its configuration and keys can be read. Raises SettingsError for a certificate's file."""
    admin = case.settings.admin
    assert admin.oidc is not None
    assert admin.public_url is not None, "checked with the settings"
    try:
        asyncio.run(code_flow(admin.oidc, admin.public_url).check())
    except IdentityProviderError as failure:
        advice = "see admin.oidc.issuer; until then, operators can sign in with a secret only"
        return [warning(TITLE, str(failure), advice)]
    return [ok(TITLE, f"{admin.oidc.issuer}: has its configuration and keys")]


def issuer(name: str, case: CheckedDeployment) -> list[Finding]:
    """Check that the keys of the issuer of this identity can be fetched. Raises SettingsError for a certificate's
    file."""
    one, title = case.settings.identities[name], f"identity {name}"
    try:
        asyncio.run(issuer_keys(one).check())
    except IdentityProviderError as failure:
        setting = "issuer" if one.jwks is None else "jwks"
        return [warning(title, str(failure), f"see identities.{name}.{setting}; until then, its tokens get 503")]
    return [ok(title, f"{one.issuer}: has its keys")]
