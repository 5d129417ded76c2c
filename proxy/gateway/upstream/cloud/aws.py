"""Signs requests with AWS's SigV4, by botocore. Needs the extra `bedrock`.

Invariants: method, target, host, date and body are signed; the rest of the head is not. A signature serves one request,
and AWS accepts it for minutes.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from hashlib import sha256
from math import inf
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials, ReadOnlyCredentials, RefreshableCredentials
from botocore.exceptions import NoCredentialsError
from botocore.session import Session

from proxy.foundation.slices import in_slices
from proxy.gateway.upstream.cloud.fetched import Fetched, Lasting
from proxy.settings.cloud_auth import AwsAuthSettings

# botocore renews credentials ten minutes before they end at the latest; it is called once a minute.
_ASK_EVERY_S, _USABLE_S = 60.0, 300.0
# The timeout of a server that issues credentials.
_LIMITS = Config(connect_timeout=5, read_timeout=10, retries={"max_attempts": 1})
# The identity of the requester. AWS's refusals name it, with the number of the account.
_IDENTITY = re.compile(rb"arn:aws[a-z-]*:(?:iam|sts)::")
_ADDED = ("Authorization", "X-Amz-Content-SHA256", "X-Amz-Date", "X-Amz-Security-Token")


class AwsAuthorization:
    """The signer of one provider."""

    def __init__(self, settings: AwsAuthSettings, region: str, root: str, provider: str) -> None:
        """`root`: scheme and host."""
        for name in ("botocore", "urllib3"):  # their debug messages contain the signed text, with session tokens
            logging.getLogger(name).setLevel(logging.WARNING)
        self._settings = settings
        self._region = region
        self._root = root
        self._host = root.partition("://")[2]
        self._found: Any = None  # botocore's credentials
        self._credentials = Fetched(self._fetch, f"AWS credentials of provider {provider}")

    async def authorized(self, request: bytes, *rest: bytes) -> bytes:
        """The request with its signature. `rest`: further pieces of its body. Raises CredentialFailedError."""
        credentials = await self._credentials.get()
        line_end, head_end = request.index(b"\r\n"), request.index(b"\r\n\r\n") + 4
        body: list[bytes | memoryview] = [memoryview(request)[head_end:], *rest]
        digest = await in_slices(sum(map(len, body)), _digest, body)
        method, target, _ = request[:line_end].decode("latin-1").split(" ")
        added = self._signed(credentials, method, target, digest)
        return b"%b\r\n%b%b" % (request[:line_end], added.encode("latin-1"), request[line_end + 2 :])

    def _signed(self, credentials: ReadOnlyCredentials, method: str, target: str, digest: str) -> str:
        headers = {"Host": self._host, "X-Amz-Content-SHA256": digest}
        request = AWSRequest(method=method, url=f"{self._root}{target}", headers=headers)
        SigV4Auth(credentials, self._settings.service, self._region).add_auth(request)
        return "".join(f"{name}: {request.headers[name]}\r\n" for name in _ADDED if name in request.headers)

    def is_revealed_by(self, body: bytes) -> bool:
        """True if `body` contains a credential, or the identity: AWS's refusals name the user or the role."""
        used = self._credentials.last
        secrets = () if used is None else (used.access_key, used.secret_key, used.token)
        return _IDENTITY.search(body) is not None or any(one and one.encode() in body for one in secrets)

    def _fetch(self) -> Lasting[ReadOnlyCredentials]:
        """The current credentials. Blocks. Raises any exception of botocore."""
        if self._found is None:
            self._found = self._find()
        frozen = self._found.get_frozen_credentials()
        if not isinstance(self._found, RefreshableCredentials):
            return Lasting(frozen, inf, inf)
        now = time.time()
        return Lasting(frozen, now + _ASK_EVERY_S, now + _USABLE_S)

    def _find(self) -> Any:
        settings = self._settings
        if settings.access_key_id is not None and settings.secret_access_key is not None:
            token = None if settings.session_token is None else settings.session_token.reveal()
            return Credentials(settings.access_key_id.reveal(), settings.secret_access_key.reveal(), token)
        session = Session(profile=settings.profile)
        session.set_default_client_config(_LIMITS)
        if (found := session.get_credentials()) is None:
            raise NoCredentialsError
        return found


def _digest(pieces: Iterable[bytes | memoryview]) -> str:
    digest = sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
