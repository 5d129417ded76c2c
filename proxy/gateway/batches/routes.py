"""The routes of files and batches, made from the table of their APIs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from proxy.http.server import Routes, Serve
from proxy.metering.stored_objects import OBJECT_APIS
from proxy.metering.stored_objects.api import ObjectApi, Operation

Serving = Callable[[Sequence[ObjectApi], Operation, str | None], Serve]
"""the APIs at a path, the operation, and the id of an object → the handler"""

# What Anthropic's SDKs always send, and OpenAI's never.
_ANTHROPIC_HEADER = "anthropic-version"


def add_to(routes: Routes, serving: Serving) -> None:
    """Add all routes, after those of exchanges: some paths have a common beginning."""
    paths: dict[str, list[ObjectApi]] = {}
    for api in OBJECT_APIS:
        paths.setdefault(api.path, []).append(api)
    for path, apis in paths.items():
        for operation in dict.fromkeys(operation for api in apis for operation in api.operations):
            if operation.after is None:
                routes.local(operation.method, path, serving(apis, operation, None))
            else:
                routes.named(operation.method, f"{path}/", operation.after, _of(serving, apis, operation))


def _of(serving: Serving, apis: Sequence[ObjectApi], operation: Operation) -> Callable[[str], Serve]:
    def of(object_id: str) -> Serve:
        return serving(apis, operation, object_id)

    return of


def spoken(apis: Sequence[ObjectApi], headers: Mapping[str, str]) -> ObjectApi:
    """The API of the client, at a path that two families share."""
    anthropic = [api for api in apis if api.name.startswith("anthropic.")]
    if len(apis) > 1 and anthropic:
        return anthropic[0] if _ANTHROPIC_HEADER in headers else next(api for api in apis if api not in anthropic)
    return apis[0]
