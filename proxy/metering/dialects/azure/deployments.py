"""OpenAI's dialects at Azure: under a deployment's path or `/openai/v1`, with the key in `api-key`.

Invariants: only paths and key differ: tally, rewriting and stripper are OpenAI's. The deployment in the path is the
model. A provider's base URL ends with `/openai`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.metering.dialect import NAME, Dialect, KeyHeader, Rewrite
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGE_EDITS, OPENAI_IMAGES
from proxy.metering.dialects.openai_media.speech import OPENAI_SPEECH
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS, OPENAI_TRANSLATIONS
from proxy.metering.dialects.openai_realtime.session import OPENAI_REALTIME
from proxy.metering.dialects.openai_responses.responses import OPENAI_COMPACT, OPENAI_INPUT_TOKENS, OPENAI_RESPONSES


def _at(path: str, dialect: Dialect, suffix: str = "", **more: Any) -> Dialect:
    return replace(
        dialect,
        name=f"azure.{dialect.name.partition('.')[2]}{suffix}",
        paths=(f"/openai{path}",),
        key_header=KeyHeader.API_KEY,
        query=("api-version",),
        names_files=False,  # there is no upload at these paths
        **more,
    )


def _under_deployment(dialect: Dialect) -> Dialect:
    path = f"/deployments/{NAME}{dialect.upstream_path}"
    rewrite = _keeping_model(dialect.upstream_document)
    return _at(path, dialect, headers_down=_HEADERS_DOWN, upstream_document=rewrite)


def _under_v1(dialect: Dialect) -> Dialect:
    return _at(f"/v1{dialect.upstream_path}", dialect, "_v1", headers_down=_HEADERS_DOWN)


def _in_query(dialect: Dialect) -> Dialect:
    """The deployment is in the query, as in versions before `/openai/v1`."""
    assert dialect.socket is not None
    return _at(dialect.upstream_path, dialect, socket=replace(dialect.socket, model_query="deployment"))


def _keeping_model(rewrite: Rewrite) -> Rewrite:
    """`rewrite` without the model, which is in the path; a model in the body is forwarded unchanged."""

    def upstream_document(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
        sent = rewrite(document, upstream_model=upstream_model, inject_usage=inject_usage)
        if "model" in document:
            sent["model"] = document["model"]
        else:
            del sent["model"]
        return sent

    return upstream_document


# Requested by Azure's support.
_HEADERS_DOWN = ("apim-request-id",)
# A name may contain slashes: if one path under a deployment ends like another, the longer one comes first.
_PLACES = (
    (OPENAI_CHAT, (_under_deployment, _under_v1)),
    (OPENAI_COMPLETIONS, (_under_deployment, _under_v1)),
    (OPENAI_EMBEDDINGS, (_under_deployment, _under_v1)),
    (OPENAI_IMAGES, (_under_deployment, _under_v1)),
    (OPENAI_IMAGE_EDITS, (_under_deployment, _under_v1)),
    (OPENAI_SPEECH, (_under_deployment, _under_v1)),
    (OPENAI_TRANSCRIPTIONS, (_under_deployment, _under_v1)),
    (OPENAI_TRANSLATIONS, (_under_deployment, _under_v1)),
    (OPENAI_RESPONSES, (_under_v1,)),
    (OPENAI_COMPACT, (_under_v1,)),
    (OPENAI_INPUT_TOKENS, (_under_v1,)),
    (OPENAI_REALTIME, (_in_query, _under_v1)),
)

AZURE = tuple(place(dialect) for dialect, places in _PLACES for place in places)
