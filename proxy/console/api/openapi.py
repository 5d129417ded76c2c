"""The OpenAPI 3.1 document.

Invariant: it is generated from the endpoints and from the types that decode requests and encode answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from proxy import __version__
from proxy.console.api.endpoints import Endpoint, Refusal
from proxy.http.errors import JSON_TYPE

_IN_ID = str.maketrans("/.", "__", "{}")
_REF = "#/components/schemas/{name}"
# A path parameter, as `http/server.py` accepts it.
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9@][A-Za-z0-9_.-]{0,199}$"}


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The document of these endpoints."""
    table = list(endpoints)
    bodies = [one.body for one in table if one.body is not None]
    types = [*bodies, *(kind for one in table for kind in one.answers.values()), Refusal]
    shown, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = dict(zip(map(_key, types), shown, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in table:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tokenweir", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _as_encoded(components),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


# A Decimal in msgspec's schema, and as `endpoints.encoded` writes it.
_DECIMAL, _NUMBER = {"type": "string", "format": "decimal"}, {"type": "number"}


def _as_encoded(schema: Any) -> Any:
    if schema == _DECIMAL:
        return _NUMBER
    if isinstance(schema, dict):
        return {name: _as_encoded(below) for name, below in schema.items()}
    return [_as_encoded(below) for below in schema] if isinstance(schema, list) else schema


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(one: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    refusal = {"description": "Error.", "content": _json(schemas[_key(Refusal)])}
    answers = {
        str(status): {
            "description": "Success." if status == 200 else "Not settled yet.",
            "content": _json(schemas[_key(kind)]) | (_others(one) if status == 200 else {}),
        }
        for status, kind in one.answers.items()
    }
    shown: dict[str, Any] = {
        "operationId": f"{one.method.lower()}{one.path}".translate(_IN_ID),
        "summary": one.summary,
        "parameters": [*_in_path(one), *_in_query(one)],
        "responses": {**answers, "4XX": refusal, "5XX": refusal},
    }
    if one.body is not None:
        shown["requestBody"] = {"required": True, "content": _json(schemas[_key(one.body)])}
    return shown


def _others(one: Endpoint) -> dict[str, Any]:
    return {kind: {"schema": {"type": "string"}} for kind in one.other_types}


def _json(schema: Any) -> dict[str, Any]:
    return {JSON_TYPE: {"schema": schema}}


def _in_path(one: Endpoint) -> list[dict[str, Any]]:
    name = one.placeholder
    return [] if name is None else [{"name": name, "in": "path", "required": True, "schema": _NAME}]


def _in_query(one: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": msgspec.json.schema(field.type),
        }
        for field in msgspec.structs.fields(one.query)
    ]
