"""Paths of publishers' models.

Invariant: the project and the location in a client's path are not read. Those of a provider are in its base URL, which
ends with `/projects/…/locations/…`, or in express mode, which has no projects, with the version.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.dialect import NAME, KeyHeader

_VERSIONS = ("v1", "v1beta1")
_PLACE = "/projects/{project}/locations/{location}"


def publisher_paths(publisher: str, method: str, model: str = NAME) -> dict[str, Any]:
    """The paths of a method of this publisher's models."""
    path = f"/publishers/{publisher}/models/{model}:{method}"
    return {
        "paths": tuple(f"/{version}{place}{path}" for place in (_PLACE, "") for version in _VERSIONS),
        "upstream_path": path,
        "key_header": KeyHeader.X_GOOG_API_KEY,
    }
