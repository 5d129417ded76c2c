"""What a Kubernetes API server refuses in a manifest by its schema, unknown fields included.

Built-in kinds: the schemas of `kubernetes-validate`. Others: those of their CRDs, in `crds/`, which name their source.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jsonschema

# The oldest that the chart takes, and the newest that the package has.
VERSIONS = ("1.27", "1.37")
_CRDS = Path(__file__).parent / "crds"


def faults(manifest: dict[str, Any]) -> list[str]:
    """One text for each fault: where it is, and what is wrong."""
    crd = _CRDS / f"{manifest['kind'].lower()}.json"
    if crd.exists():
        return [_text(error) for error in _validator(crd).iter_errors(manifest)]
    return [text for version in VERSIONS if (text := _fault(manifest, version)) is not None]


def _fault(manifest: dict[str, Any], version: str) -> str | None:
    import kubernetes_validate

    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{version}: {_text(error)}"
    return None


@cache
def _validator(crd: Path) -> jsonschema.Draft7Validator:
    import jsonschema

    return jsonschema.Draft7Validator(_strict(json.loads(crd.read_text())))


def _strict(schema: Any) -> Any:
    """Without fields that the schema does not know; the metadata of an object is Kubernetes' own."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {word: _strict(one) for word, one in schema.items()}
    known = schema.get("properties")
    return {"additionalProperties": False, **made} if isinstance(known, dict) and known else made


def _text(error: jsonschema.ValidationError) -> str:
    return f"{error.json_path}: {error.message}"
