"""Vertex AI: the publishers' own dialects at Google's paths, and predict."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from proxy.gateway.exchange.upstream_request import target
from proxy.http.errors import ApiError
from proxy.http.server import Routes
from proxy.metering.dialect import Dialect, KeyHeader
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_ERRORS
from proxy.metering.dialects.vertex.publishers import (
    VERTEX,
    VERTEX_ANTHROPIC,
    VERTEX_ANTHROPIC_COUNT,
    VERTEX_ANTHROPIC_STREAM,
    VERTEX_ERRORS,
    VERTEX_GENERATE,
    VERTEX_MISTRAL,
    VERTEX_MISTRAL_STREAM,
    VERTEX_PREDICT,
    VERTEX_STREAM,
)
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.request import InvalidField
from proxy.metering.usage import Usage
from tests.metering.fixtures import read_again_of, read_answer

ASKED = {"messages": [{"role": "user", "content": "How high is the water?"}], "max_tokens": 99}


class Asked(Exception):
    """Who serves, and which name was in the path."""


async def tell(_request: Any, _connection: Any, dialect: Dialect, named: str | None) -> Any:
    raise Asked(dialect.name, named)


@pytest.fixture(scope="module")
def routes() -> Routes:
    made = Routes()
    for dialect in DIALECTS:
        made.metered(dialect, tell)
    return made


PLACE = "projects/their-project/locations/europe-west1"
CLAUDE = "publishers/anthropic/models/claude-sonnet-4-5@20250929"


@pytest.mark.parametrize(
    ("path", "name", "model"),
    [
        (f"/v1/{PLACE}/{CLAUDE}:rawPredict", "anthropic", "claude-sonnet-4-5@20250929"),
        (f"/v1/{PLACE}/{CLAUDE.replace('@', '%40')}:rawPredict", "anthropic", "claude-sonnet-4-5@20250929"),
        (f"/v1beta1/{PLACE}/{CLAUDE}:streamRawPredict", "anthropic_stream", "claude-sonnet-4-5@20250929"),
        (f"/{PLACE}/{CLAUDE}:rawPredict", "anthropic", "claude-sonnet-4-5@20250929"),  # a base URL without /v1
        (f"/v1/{PLACE}/publishers/anthropic/models/count-tokens:rawPredict", "anthropic_count_tokens", None),
        (f"/v1/{PLACE}/publishers/mistralai/models/mistral-small-2503:rawPredict", "mistralai", "mistral-small-2503"),
        (f"/v1/{PLACE}/publishers/google/models/gemini-2.5-pro:generateContent", "generate", "gemini-2.5-pro"),
        (f"/v1beta1/{PLACE}/publishers/google/models/g/b:streamGenerateContent?alt=sse", "stream", "g/b"),
        ("/v1beta1/publishers/google/models/gemini-2.5-pro:generateContent", "generate", "gemini-2.5-pro"),
        (
            "/v1/projects/example.com%3Aours/locations/global/publishers/google/models/g:countTokens",
            "count_tokens",
            "g",
        ),
        ("/v1/projects/example.com:ours/locations/global/publishers/google/models/g:predict", "predict", "g"),
    ],
)
async def test_the_project_and_the_location_of_a_client_are_not_read(
    routes: Routes, path: str, name: str, model: str | None
) -> None:
    with pytest.raises(Asked) as asked:
        await routes.find("POST", path)(None, None)  # type: ignore[arg-type]
    assert asked.value.args == (f"vertex.{name}", model)


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/{PLACE}/publishers/google/models/gemini-2.5-pro:rawPredict",
        f"/v1/{PLACE}/publishers/anthropic/models/claude:generateContent",
        f"/v1/{PLACE}/publishers/unknown/models/m:rawPredict",
        f"/v1/{PLACE}/publishers/anthropic/models/:rawPredict",
        f"/v1/{PLACE}/publishers/anthropic/models/../m:rawPredict",
        f"/v1/{PLACE}/endpoints/123:predict",
        "/v1/projects//locations/l/publishers/google/models/m:generateContent",
        "/v1/projects/a/b/locations/l/publishers/google/models/m:generateContent",
        "/v1/projects/a b/locations/l/publishers/google/models/m:generateContent",
        "/v1/projects/p/locations/l/x/publishers/google/models/m:generateContent",
        "/v2/projects/p/locations/l/publishers/google/models/m:generateContent",
    ],
)
def test_other_paths_lead_nowhere(routes: Routes, path: str) -> None:
    with pytest.raises(ApiError) as refusal:
        routes.find("POST", path)
    assert refusal.value.status == 404


def test_errors_have_the_shape_of_the_publisher(routes: Routes) -> None:
    for path, shape in (
        (f"/v1/{PLACE}/{CLAUDE}:rawPredict", ANTHROPIC_ERRORS),
        (f"/v1/{PLACE}/publishers/anthropic/models/count-tokens:rawPredict", ANTHROPIC_ERRORS),
        (f"/v1/{PLACE}/publishers/google/models/g:generateContent", VERTEX_ERRORS),
        (f"/v1/{PLACE}/publishers/google/models/..:generateContent", VERTEX_ERRORS),
        (f"/v1/{PLACE}/publishers/mistralai/models/m:rawPredict", OPENAI_ERRORS),
        (f"/v1beta1/{PLACE}/nothing", VERTEX_ERRORS),
    ):
        assert routes.shape(path) is shape, path


def test_the_path_upstream_is_the_operators() -> None:
    """What stands before it is the base URL, which ends with the operator's project and location."""
    assert target(VERTEX_ANTHROPIC, "claude@1", f"/v1/{PLACE}/{CLAUDE}:rawPredict?x=1") == (
        "/publishers/anthropic/models/claude@1:rawPredict"
    )
    assert target(VERTEX_STREAM, "g", f"/v1/{PLACE}/x?alt=sse&key=k") == (
        "/publishers/google/models/g:streamGenerateContent?alt=sse"
    )
    # That of API keys; access tokens come from `auth`.
    assert {dialect.key_header for dialect in VERTEX} == {KeyHeader.X_GOOG_API_KEY}
    assert all("{project}" not in dialect.upstream_path for dialect in VERTEX)


@pytest.mark.parametrize(
    ("dialect", "body", "streamed"),
    [
        (VERTEX_ANTHROPIC, {}, False), (VERTEX_ANTHROPIC, {"stream": True}, True), (VERTEX_ANTHROPIC_STREAM, {}, True),
        (VERTEX_ANTHROPIC_STREAM, {"stream": True}, True), (VERTEX_MISTRAL, {"stream": True}, True),
        (VERTEX_MISTRAL_STREAM, {}, True),
    ],
)  # fmt: skip
def test_a_stream_is_asked_for_by_the_path_or_the_body(dialect: Dialect, body: dict[str, Any], streamed: bool) -> None:
    facts = dialect.facts(ASKED | body, "claude")
    assert (facts.model, facts.streamed, facts.completion_tokens_max) == ("claude", streamed, 99)


def test_the_body_has_a_model_only_where_the_publisher_wants_one() -> None:
    def sent(dialect: Dialect, **more: Any) -> dict[str, Any]:
        return dialect.upstream_document({"a": 1, **more}, upstream_model="up", inject_usage=True)

    assert sent(VERTEX_ANTHROPIC) == sent(VERTEX_ANTHROPIC_STREAM) == {"a": 1}
    assert sent(VERTEX_ANTHROPIC, model="dear") == {"a": 1, "model": "up"}
    assert sent(VERTEX_MISTRAL) == sent(VERTEX_ANTHROPIC_COUNT) == {"a": 1, "model": "up"}
    assert sent(VERTEX_GENERATE, model="dear") == {"a": 1}
    assert VERTEX_MISTRAL_STREAM.stripper is None


def test_counting_names_the_model_in_its_body() -> None:
    assert VERTEX_ANTHROPIC_COUNT.facts({"model": "claude", **ASKED}).model == "claude"
    assert VERTEX_ANTHROPIC_COUNT.free
    with pytest.raises(InvalidField, match="model"):
        VERTEX_ANTHROPIC_COUNT.facts(ASKED)


# -- predict -----------------------------------------------------------------------------------------------------


predicted = partial(read_answer, VERTEX_PREDICT)


def vector(tokens: float | None) -> dict[str, Any]:
    return {"embeddings": {"statistics": {"truncated": False, "token_count": tokens}, "values": [0.5] * 700}}


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"predictions": [vector(22)], "metadata": {"billableCharacterCount": 133}}, Usage(22, None, 0, None, 22)),
        ({"predictions": [vector(3.0), vector(4)]}, Usage(7, None, 0, None, 7)),
        ({"predictions": [vector(None)]}, None),
        ({"predictions": [vector(-1)]}, None),
        ({"predictions": []}, None),
        ({"predictions": [{"bytesBase64Encoded": "aGk=", "mimeType": "image/png"}] * 2}, Usage(images=2)),
        ({"predictions": [{"raiFilteredReason": "no"}, {"mimeType": "image/png"}]}, Usage(images=1)),
    ],
)
def test_predictions_are_counted(document: dict[str, Any], usage: Usage | None) -> None:
    metered = predicted(document)
    assert metered.usage == usage
    assert (metered.complete, metered.failed, metered.unknown_usage_fields.paths) == (True, None, ())
    if usage is not None:
        assert read_again_of(VERTEX_PREDICT, metered) == usage


def test_odd_answers_raise_nothing() -> None:
    assert predicted({"error": {"code": 400, "message": "no"}}).failed == "error_body"
    for odd in (None, 1, [], {}, {"predictions": 1}, {"predictions": [1, None, {"embeddings": 2}]}, {"usage": 1}):
        assert predicted(odd).usage is None


def test_a_request_of_predict() -> None:
    facts = VERTEX_PREDICT.facts({"instances": [{"content": "abc"}, {"content": "de", "task_type": "X"}]}, "e")
    assert (facts.completion_tokens_max, facts.prompt.chars_latin, facts.prompt.messages) == (0, 5, 2)
    assert facts.asked == Usage()
    drawn = VERTEX_PREDICT.facts({"instances": [{"prompt": "a mill"}], "parameters": {"sampleCount": 2}}, "i")
    assert (drawn.asked, drawn.prompt.chars_latin) == (Usage(images=2), 6)
    assert VERTEX_PREDICT.facts({"instances": [{"prompt": "a mill"}]}, "i").asked == Usage(images=4)
