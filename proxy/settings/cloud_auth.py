"""The settings of credentials that are no API key: AWS signatures and Google access tokens.

Invariant: a secret in the file is a `${VAR}`. Credentials from the cloud's default chain (variables, profiles, machine
roles) are found by the cloud's library, at the first request.
"""

from __future__ import annotations

import re
from pathlib import Path

from proxy.foundation.secret import Secret
from proxy.settings.fields import FieldPath, section, setting, settings_section
from proxy.settings.kinds import path_of, secret, text

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+=,/-]{0,127}", re.ASCII)
_REGION = re.compile(r"[a-z]{2,8}(?:-[a-z]{1,12}){1,3}-[0-9]{1,2}", re.ASCII)
# The host of a service names its region: bedrock-runtime.us-east-1.amazonaws.com, bedrock-mantle.us-east-1.api.aws.
_IN_HOST = re.compile(
    rf"(?:.+\.)?({_REGION.pattern})\.(?:.+\.)?(?:amazonaws\.com|amazonaws\.com\.cn|api\.aws)", re.ASCII
)


@settings_section
class AwsAuthSettings:
    """Settings for requests signed with AWS SigV4."""

    region: str | None = setting(
        text(_REGION, "a region: `us-east-1`"), "the AWS region", default=None, shown="the region in `base_url`'s host"
    )
    service: str = setting(
        text(_WORD, "the name of a service"), "the service that the signature names", default="bedrock"
    )
    profile: str | None = setting(
        text(_WORD, "the name of a profile"),
        "a profile of AWS's own configuration files, which may assume a role",
        default=None,
        shown="AWS_PROFILE, or the default one",
    )
    access_key_id: Secret | None = setting(
        secret(), "an AWS access key", default=None, shown="AWS's default chain: variables, profiles, machine role"
    )
    secret_access_key: Secret | None = setting(
        secret(), "the secret of the access key", default=None, shown="AWS's default chain"
    )
    session_token: Secret | None = setting(secret(), "the session token of a temporary access key", default=None)

    def region_at(self, host: str) -> str | None:
        """The AWS region in the provider's host name; None: unknown."""
        found = _IN_HOST.fullmatch(host)
        return self.region or (None if found is None else found[1])


@settings_section
class GoogleAuthSettings:
    """Settings for requests with a Google access token."""

    credentials_file: Path | None = setting(
        path_of("file"),
        "the key of a service account, in JSON, or a user's credentials",
        default=None,
        shown="application default credentials: GOOGLE_APPLICATION_CREDENTIALS, gcloud, machine account",
    )


@settings_section
class AuthSettings:
    """Cloud credentials of a provider: AWS or Google."""

    aws: AwsAuthSettings | None = setting(
        section(AwsAuthSettings),
        "sign requests for AWS; needs the extra `tokenweir[bedrock]`",
        default=None,
        shown="off",
    )
    google: GoogleAuthSettings | None = setting(
        section(GoogleAuthSettings),
        "send Google's access tokens; needs the extra `tokenweir[vertex]`",
        default=None,
        shown="off",
    )


def check_auth(auth: AuthSettings, host: str, *, has_keys: bool, at: FieldPath) -> None:
    """Check settings that depend on each other. `has_keys`: the provider also has an API key. Raises SettingsError."""
    if (auth.aws is None) == (auth.google is None):
        raise at.wrong("must have one of `aws` and `google`; `aws: {}` is enough")
    if has_keys:
        raise at.wrong("cannot be combined with `api_key` or `credentials`")
    if (aws := auth.aws) is None:
        return
    here = at.under("aws")
    if (aws.access_key_id is None) != (aws.secret_access_key is None):
        raise here.wrong("set both `access_key_id` and `secret_access_key`, or neither")
    if aws.session_token is not None and aws.access_key_id is None:
        raise here.under("session_token").wrong("needs `access_key_id`")
    if aws.profile is not None and aws.access_key_id is not None:
        raise here.under("profile").wrong("cannot be combined with `access_key_id`: give one of the two")
    if aws.region_at(host) is None:
        raise here.under("region").wrong("is missing: the host of `base_url` does not name it")
