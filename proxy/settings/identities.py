"""The settings of identities: requests of clients that are authenticated by tokens (JWT) of an issuer, without a key.

Invariants: an issuer that serves the whole world is accepted only with a condition that names its owner there. Two
identities never accept the same token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

from proxy.billing.byok import terms_of
from proxy.billing.dimensions import END_USER, RUN, SESSION, TAGS_MAX, tag
from proxy.billing.limits import BUDGET_NUSD_MAX, RATE_MAX, Limits
from proxy.billing.money import NUSD_PER_USD, Nusd
from proxy.billing.windows import WINDOW_DEFAULT, checked_window
from proxy.settings.faults import gathered
from proxy.settings.fields import (
    TEXT,
    FieldPath,
    FieldType,
    names,
    read_section,
    section,
    setting,
    settings_section,
)
from proxy.settings.kinds import text, texts, usd, whole
from proxy.settings.models import PLAIN_MODEL_NAME
from proxy.settings.operators import claim_name, issuer, secure_url
from proxy.settings.outbound import OutboundSettings

# The name is a part of the ids of keys.
IDENTITY_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_NAME_SHAPE = "1 to 32 of a-z 0-9 -"
_AUDIENCE = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)
_VALUE = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
_PROJECT = re.compile(r"[^\x00-\x1f\x7f]{1,128}")

OWNER_CLAIMS: Mapping[str, frozenset[str]] = {
    "https://token.actions.githubusercontent.com": frozenset(
        {"repository", "repository_id", "repository_owner", "repository_owner_id", "enterprise_id", "sub"}
    ),
    "https://gitlab.com": frozenset({"namespace_path", "namespace_id", "project_path", "project_id", "sub"}),
    "https://accounts.google.com": frozenset({"hd", "email", "sub"}),
    "https://agent.buildkite.com": frozenset({"organization_slug", "organization_id", "sub"}),
    "https://app.terraform.io": frozenset(
        {"terraform_organization_id", "terraform_organization_name", "terraform_workspace_id", "sub"}
    ),
}
"""issuers that give a token for any audience to anybody → the claims that name its owner"""


def _by_name(name: FieldType, kind: FieldType, description: str) -> FieldType:
    """A mapping of names to values of `kind`."""

    def read(raw: object, at: FieldPath) -> dict[str, object]:
        if not isinstance(raw, dict) or not raw:
            raise at.wrong("must be a mapping with at least one name")
        return {name.read(key, at.under(str(key))): kind.read(raw[key], at.under(str(key))) for key in raw}

    return FieldType(description, read, schema={"type": "object", "additionalProperties": dict(kind.schema)})


def _tag_name() -> FieldType:
    def read(raw: object, at: FieldPath) -> str:
        found = tag(raw) if isinstance(raw, str) else None
        if found is None:
            raise at.wrong("the name of a tag must be 1 to 32 of a-z 0-9 _ . -, and begin with a letter")
        return found

    return FieldType("the name of a tag", read)


def _one_or_several(one: FieldType, several: FieldType) -> FieldType:
    """A list of values, or one value."""

    def read(raw: object, at: FieldPath) -> frozenset[str]:
        return several.read(raw, at) if isinstance(raw, list) else frozenset({one.read(raw, at)})

    return FieldType(several.description, read, schema={"anyOf": [dict(one.schema), dict(several.schema)]})


def _window() -> FieldType:
    def read(raw: object, at: FieldPath) -> str:
        try:
            return checked_window(at.filled(raw) if isinstance(raw, str) else "")
        except ValueError as wrong:
            raise at.wrong(str(wrong)) from None

    return FieldType("`30d`, `12h`, …, `calendar_day`, `calendar_week`, `calendar_month` or `none`", read, schema=TEXT)


def _byok() -> FieldType:
    def read(raw: object, at: FieldPath) -> str:
        try:
            return terms_of(at.filled(raw) if isinstance(raw, str) else "")
        except ValueError as wrong:
            raise at.wrong(str(wrong)) from None

    return FieldType("`free`, a share such as `5%`, or a fee such as `0.002usd/request`", read, schema=TEXT)


@settings_section
class IdentityKeySettings:
    """Limits and models of a new key of the identity; later changes are made as for any key."""

    budget_nusd: Nusd | None = setting(
        usd(BUDGET_NUSD_MAX // NUSD_PER_USD), "maximum spend in each window", default=None, name="budget_usd"
    )
    budget_window: str = setting(_window(), "window of the budget", default=WINDOW_DEFAULT)
    rpm: int | None = setting(whole(1, RATE_MAX), "requests in any 60 s", default=None)
    tpm: int | None = setting(whole(1, RATE_MAX), "tokens in any 60 s", default=None)
    parallel: int | None = setting(whole(1, RATE_MAX), "concurrent exchanges", default=None)
    models: frozenset[str] | None = setting(
        texts(PLAIN_MODEL_NAME, "the name of a model"), "the models that it may use", default=None, shown="all"
    )
    byok: str | None = setting(
        _byok(),
        "clients with these tokens send their own provider credential, and are billed by these terms",
        default=None,
        shown="the operator's credential is used",
    )

    @property
    def limits(self) -> Limits:
        return Limits(
            budget_nusd=self.budget_nusd, budget_window=self.budget_window, rpm=self.rpm, tpm=self.tpm,
            parallel=self.parallel,
        )  # fmt: skip


@settings_section
class IdentityClaims:
    """Claims of the tokens; `a.b` is the member `b` of `a`."""

    project: str | None = setting(
        claim_name(),
        "the claim that selects the project: by `projects` or, without these, its value is the project's id or name",
        default=None,
    )
    end_user: str = setting(
        claim_name(), "the claim with the end user of the requests; a token without it is refused", default="sub"
    )
    session: str | None = setting(claim_name(), "the claim with their session", default=None)
    run: str | None = setting(claim_name(), "the claim with their run", default=None)
    tags: Mapping[str, str] = setting(
        _by_name(_tag_name(), claim_name(), "name of a tag: the name of a claim"),
        f"the claims that are tags of the requests, at most {TAGS_MAX}",
        default_factory=dict,
        shown="none",
    )

    def dimensions(self) -> Iterator[tuple[str, str]]:
        """Pairs of a dimension and its claim."""
        named = {END_USER: self.end_user, SESSION: self.session, RUN: self.run}
        yield from ((dimension, claim) for dimension, claim in named.items() if claim is not None)
        yield from self.tags.items()


@settings_section
class IdentitySettings(OutboundSettings):
    """Clients that send tokens of one issuer in place of a key."""

    name: str
    issuer: str = setting(issuer(), "the claim `iss` of its tokens, a URL")
    audience: str = setting(
        text(_AUDIENCE, "1 to 256 visible ASCII characters"), "the claim `aud` of tokens that are for this deployment"
    )
    jwks: str | None = setting(
        secure_url(), "URL of its keys", default=None, shown="by `/.well-known/openid-configuration` below the issuer"
    )
    require: Mapping[str, frozenset[str]] = setting(
        _by_name(
            claim_name(),
            _one_or_several(text(_VALUE, "1 to 256 characters"), texts(_VALUE, "1 to 256 characters")),
            "name of a claim: a list of values",
        ),
        "claims that a token must have, each with one of these values",
        default_factory=dict,
        shown="none",
    )
    project: str = setting(
        text(_PROJECT, "1 to 128 characters"),
        "the project of all requests, by id or name; or give `claims.project`",
        default="",
        shown="none",
    )
    projects: Mapping[str, str] = setting(
        _by_name(
            text(_VALUE, "a value of the claim, 1 to 256 characters"), text(_PROJECT, "1 to 128 characters"),
            "value of the claim: id or name of a project",
        ),
        "values of `claims.project`, each with a project; the first that the token has counts, and a token without "
        "any is refused",
        default_factory=dict,
        shown="none",
    )  # fmt: skip
    claims: IdentityClaims = setting(
        section(IdentityClaims), "which claims are used, and for what", default=IdentityClaims()
    )
    key: IdentityKeySettings = setting(
        section(IdentityKeySettings),
        "limits of the identity's keys, one in each project",
        default=IdentityKeySettings(),
    )


def _checked(one: IdentitySettings, at: FieldPath) -> IdentitySettings:
    """Raises SettingsError for settings that do not go together."""
    if bool(one.project) == (one.claims.project is not None):
        raise at.under("project").wrong("give either this or `claims.project`")
    if one.projects and one.claims.project is None:
        raise at.under("projects").wrong("needs `claims.project`")
    if len(one.claims.tags) > TAGS_MAX:
        raise at.under("claims").under("tags").wrong(f"must be at most {TAGS_MAX}")
    owners = OWNER_CLAIMS.get(one.issuer)
    conditions = {*one.require, *([one.claims.project] if one.projects else ())}
    if owners is not None and not owners & conditions:
        raise at.under("require").wrong(
            "anybody can get a token from this issuer: require a value of one of "
            f"{', '.join(sorted(owners))}, here or in `projects`"
        )
    return one


def _identities(raw: object, at: FieldPath) -> Mapping[str, IdentitySettings]:
    named = names(raw, at, IDENTITY_NAME, _NAME_SHAPE)

    def read(name: str) -> IdentitySettings:
        return _checked(read_section(IdentitySettings, named[name], at.under(name), name=name), at.under(name))

    read_all = dict(zip(named, gathered(partial(read, name) for name in named), strict=True))
    accepted: dict[tuple[str, str], str] = {}
    for name, one in read_all.items():
        other = accepted.setdefault((one.issuer, one.audience), name)
        if other != name:
            raise at.under(name).under("audience").wrong(f"{other} has the same issuer and audience")
    return read_all


IDENTITIES = FieldType(_NAME_SHAPE, _identities, IdentitySettings, suffix=".<name>")
