"""Mistral's fim, and what its chat and transcripts have beside OpenAI's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from proxy.billing.money import nusd_rounded_half_up
from proxy.billing.pricing.book import PriceBook
from proxy.billing.pricing.prices import addends, can_charge, charge, configured
from proxy.billing.record import BillableParts, Price, Rates
from proxy.metering.dialects.mistral.completions import MISTRAL_AGENTS, MISTRAL_FIM
from proxy.metering.dialects.mistral.ocr import MISTRAL_OCR, PAGES
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.usage import PromptEvidence, Usage
from tests.metering.corpus.corpus import NEEDS_CORPUS, records_named
from tests.metering.corpus.dialects import metered
from tests.metering.fixtures import DONE, chunk, read_answer, read_stream, say, sse, usage

ASK = {"model": "codestral", "prompt": "def weir(", "suffix": ")"}


def thought(text: str, closed: bool = True) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}], "closed": closed}


def test_content_in_chunks_is_text_and_thinking() -> None:
    body = sse(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": [thought("Twice ", closed=False)]}),
        chunk({"content": [thought("two."), {"type": "text", "text": "It is "}]}),
        chunk({"content": [{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "4"}]}),
        chunk({"content": "."}, finish="stop", usage=usage(30, 9, 39, service_tier="standard"), p="abcdef"),
        DONE,
    )
    result = read_stream(OPENAI_CHAT, body)
    assert (result.usage, result.finish_reason, result.complete) == (Usage(30, None, 9, None, 39), "stop", True)
    assert (result.evidence.chars, result.evidence.reasoning_chars, result.evidence.text_events) == (18, 10, 4)


def test_audio_in_the_prompt_is_in_the_total_alone_and_has_a_time() -> None:
    used = usage(11, 15, 401, prompt_audio_seconds=5, prompt_tokens_details={"audio_tokens": 375, "cached_tokens": 9})
    result = read_stream(OPENAI_CHAT, sse(*say("Much"), chunk(finish="stop", usage=used), DONE))
    assert result.usage == Usage(386, 9, 15, None, 401, audio_prompt_tokens=375, audio_ms=5000, timed_audio_tokens=375)
    assert (result.flags, result.unknown_usage_fields.paths) == (("audio_added",), ())
    assert result.usage_raw == used


# What Mistral says of a transcript; its tokens of audio are the rest of the total.
HEARD = usage(4, 635, 3264, prompt_audio_seconds=203)
READ = Usage(2629, None, 635, None, 3264, audio_prompt_tokens=2625, audio_ms=203_000, timed_audio_tokens=2625)
TRANSCRIPT = {"model": "voxtral-mini-2507", "text": "Over the weir.", "language": "en", "segments": []}


def test_a_transcript_has_tokens_and_seconds() -> None:
    for heard, read in (
        (HEARD, READ),
        (HEARD | {"prompt_tokens_details": {"audio_tokens": 2625, "cached_tokens": 2}},
         structs.replace(READ, cached_tokens=2)),
        (usage(4, 635, 639, prompt_audio_seconds=203), Usage(4, None, 635, None, 639, audio_ms=203_000)),
        (HEARD | {"prompt_audio_seconds": None}, Usage(4, None, 635, None, 3264)),
    ):  # fmt: skip
        found = read_answer(OPENAI_TRANSCRIPTIONS, TRANSCRIPT | {"usage": heard})
        assert (found.usage, found.evidence.chars_latin, found.complete) == (read, 14, True)
        assert found.unknown_usage_fields.paths == ()


@pytest.mark.parametrize("bad", [-1, "5", 1e300, [5], True])
def test_an_invalid_time_spoils_itself_only(bad: Any) -> None:
    found = read_answer(OPENAI_TRANSCRIPTIONS, TRANSCRIPT | {"usage": HEARD | {"prompt_audio_seconds": bad}})
    counts = Usage(**{name: HEARD.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")})
    assert (found.usage, found.flags) == (counts, ("total_mismatch", "usage_invalid"))
    chat = OPENAI_CHAT.plain_meter()
    chat.feed(json.dumps({"choices": [], "usage": HEARD | {"prompt_audio_seconds": bad}}).encode())
    assert (chat.close().usage, chat.close().flags) == (counts, ("total_mismatch", "usage_invalid"))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "events",
    [
        [{"type": "transcription.text.delta", "text": text} for text in ("Over", " the", " weir.")],
        [{"type": "transcription.segment", "text": text, "start": 0.0, "end": 1.5} for text in ("Over the", " weir.")],
        [
            {"type": "transcription.text.delta", "text": "Over the weir."},
            {"type": "transcription.segment", "text": "Over the weir.", "start": 0.0, "end": 1.5},
        ],
        [],
    ],
)
def test_a_streamed_transcript_is_counted_once(events: list[dict[str, Any]], named: bool) -> None:
    told = [{"type": "transcription.language", "audio_language": "en"}, *events]
    told.append(TRANSCRIPT | {"type": "transcription.done", "usage": HEARD})
    wire = b"".join(
        (b"event: %s\n" % str(event["type"]).encode() if named else b"") + b"data: %s\n\n" % json.dumps(event).encode()
        for event in told
    )
    result = read_stream(OPENAI_TRANSCRIPTIONS, wire)
    assert (result.usage, result.evidence.chars_latin, result.complete) == (READ, 14, True)
    cut = read_stream(OPENAI_TRANSCRIPTIONS, wire[: wire.index(b"transcription.done")])
    assert (cut.usage, cut.complete) == (None, False)
    assert cut.evidence.chars_latin == (14 if events else 0)


# Prices of the built-in book, as lists: by time alone, by tokens alone, by both.
BY_TIME = configured(Rates(0, 0, 0, audio_hour=180_000_000))
BY_TOKEN = configured(Rates(100_000_000, 100_000_000, 300_000_000, audio_input=200_000_000))
BY_BOTH = configured(Rates(100_000_000, 10_000_000, 400_000_000, audio_hour=240_000_000))


@pytest.mark.parametrize(
    ("price", "nusd"),
    [
        (BY_TIME, 180_000_000 * 203 // 3600),
        (BY_TOKEN, 4 * 100 + 2625 * 200 + 635 * 300),
        (BY_BOTH, 4 * 100 + 635 * 400 + round(240_000_000 * 203 / 3600)),
    ],
)
def test_audio_costs_by_its_time_or_by_its_tokens_never_both(price: Price, nusd: int) -> None:
    assert charge(price, READ, BillableParts.EVERYTHING) == pytest.approx(nusd, abs=1)
    parts = addends(price.tiers[0], READ, BillableParts.EVERYTHING)
    assert nusd_rounded_half_up(sum(one.parts for one in parts)) == charge(price, READ, BillableParts.EVERYTHING)


def test_the_built_in_book_has_prices_for_what_is_read() -> None:
    for model, names in (("voxtral-mini-latest", {"audio_hour"}), ("voxtral-small-latest", {"audio_hour", "output"})):
        price = PriceBook().price(
            provider="mistral", base_url="https://api.mistral.ai/v1", model=model, at=1_795_000_000.0
        )
        assert price is not None
        assert can_charge(price, READ, BillableParts.EVERYTHING)
        assert names <= {one.name for one in addends(price.tiers[0], READ, BillableParts.EVERYTHING) if one.parts}


def test_fim_is_answered_in_the_shapes_of_chat() -> None:
    body = sse(chunk({"role": "assistant", "content": ""}), *say("self", ", x"), chunk(finish="length", usage=usage()))
    result = read_stream(MISTRAL_FIM, body + sse(DONE))
    assert (result.usage, result.finish_reason, result.complete) == (Usage(9, None, 3, None, 12), "length", True)
    assert (result.evidence.chars, result.evidence.text_events) == (7, 2)


def test_what_a_fim_request_says() -> None:
    said = MISTRAL_FIM.facts({**ASK, "max_tokens": 24, "stream": True})
    assert (said.model, said.streamed, said.completion_tokens_max, said.n) == ("codestral", True, 24, 1)
    assert said.prompt == PromptEvidence(messages=1, chars_latin=10, blanks=1, marks=2)
    assert MISTRAL_FIM.facts({"model": "m", "prompt": "水"}).prompt == PromptEvidence(messages=1, chars_wide=1)
    sent = MISTRAL_FIM.upstream_document(ASK, upstream_model="up", inject_usage=False)
    assert sent == {**ASK, "model": "up"}


def test_an_agent_stands_in_place_of_a_model() -> None:
    asked = {"agent_id": "ag:1", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True}
    said = MISTRAL_AGENTS.facts(asked)
    assert (said.model, said.streamed, said.completion_tokens_max) == ("ag:1", True, 5)
    assert MISTRAL_AGENTS.upstream_document(asked, upstream_model="ag:2", inject_usage=True) == asked | {
        "agent_id": "ag:2"
    }


@NEEDS_CORPUS
def test_recorded_answers_of_agents() -> None:
    records = [one for one in records_named("openai.completions") if "/agents/" in one["path"]]
    assert len(records) == 4
    for record in records:
        truth = record["truth"]
        result = metered(MISTRAL_AGENTS, record, [record["body"].encode()])
        assert result.usage is not None
        counted = (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.total_tokens)
        assert counted == (truth["prompt_tokens"], truth["completion_tokens"], truth["total_tokens"])
        assert (result.complete, result.unknown_usage_fields.paths) == (True, ())


SCANNED = {"index": 0, "markdown": "# Weir", "images": [{"id": "i", "image_base64": "AA=="}]}
NOTED = {"index": 1, "markdown": "", "images": [{"id": "i", "image_annotation": "{}"}]}
SCAN = {"model": "mistral-ocr", "document": {"type": "document_url", "document_url": "http://x.test/a.pdf"}}


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage_info": {"pages_processed": 7, "doc_size_bytes": 99}}, Usage(pages=7)),
        ({"pages": [SCANNED], "usage_info": {"pages_processed": 7}}, Usage(pages=7)),
        ({"pages": [SCANNED, SCANNED], "usage_info": {}}, Usage(pages=2)),
        ({"pages": [SCANNED, NOTED], "usage_info": {"pages_processed": 2}}, Usage(pages=2, annotated_pages=2)),
        (
            {"pages": [SCANNED], "document_annotation": "{}", "usage_info": {"pages_processed": 3}},
            Usage(pages=3, annotated_pages=3),
        ),
        ({"pages": [SCANNED], "usage_info": {"pages_processed": -1}}, Usage(pages=1)),
    ],
)
def test_ocr_is_counted_in_pages(answer: dict[str, Any], usage: Usage | None) -> None:
    body = json.dumps({"model": "mistral-ocr"} | answer).encode()
    for size in (1, 7, len(body)):
        result = read_answer(MISTRAL_OCR, body, size=size)
        assert (result.usage, result.complete, result.failed, result.unknown_usage_fields.paths) == (
            usage,
            True,
            None,
            (),
        )


def test_an_error_of_ocr_is_none_of_its_answers() -> None:
    assert read_answer(MISTRAL_OCR, {"object": "error", "message": "no", "type": "invalid_file"}).failed == "error_body"


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, Usage(0, None, 0, pages=PAGES)),
        ({"pages": [0, 3, 4]}, Usage(0, None, 0, pages=3)),
        ({"pages": "0-2"}, Usage(0, None, 0, pages=PAGES)),
        ({"document": {"type": "image_url", "image_url": "http://x.test/a.png"}}, Usage(0, None, 0, pages=1)),
        ({"document_annotation_format": {}, "pages": [1]}, Usage(0, None, 0, pages=1)),
        ({"bbox_annotation_format": {"type": "x"}, "pages": [1]}, Usage(0, None, 0, pages=1, annotated_pages=1)),
    ],
)
def test_what_a_request_for_ocr_asks(fields: dict[str, Any], asked: Usage) -> None:
    said = MISTRAL_OCR.facts(SCAN | fields)
    assert (said.model, said.streamed, said.completion_tokens_max, said.asked) == ("mistral-ocr", False, 0, asked)
