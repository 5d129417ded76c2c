"""Images, speech and transcriptions: what a request tells of what it will cost, and what each answer says of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec import structs

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGE_EDITS, OPENAI_IMAGE_VARIATIONS, OPENAI_IMAGES
from proxy.metering.dialects.openai_media.speech import OPENAI_SPEECH
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.metered import Metered
from proxy.metering.request import Upload
from proxy.metering.usage import PromptEvidence, Usage, UsageSource
from proxy.metering.wire.framing import Framing
from tests.metering.fixtures import fed, in_pieces, read_answer, read_stream, reading_of, sse

DRAW = {"model": "m", "prompt": "a weir"}
SAY = {"model": "m", "input": "Hello 堰", "voice": "alto"}
MP3 = Upload("a.mp3", "audio/mpeg", b"\xff\xfb" * 8000)
HEAR = {"model": "m", "file": MP3}
PNG = Upload("a.png", "image/png", b"\x89PNG")
EDIT = DRAW | {"image[]": [PNG, PNG], "stream": "false"}
LINKED = DRAW | {"images": [{"image_url": "http://x.test/1"}]}
TOKENS = {"input_tokens": 10, "output_tokens": 1056, "total_tokens": 1066}
GENERATED = Usage(10, None, 1056, None, 1066, image_completion_tokens=1056)


def framing(dialect: Dialect) -> Framing:
    found = dialect.framing("text/event-stream", streamed=True)
    assert found is not None
    return found


def streamed(dialect: Dialect, *events: dict[str, Any] | str) -> Metered:
    """The reading, the same at every cut."""
    return read_stream(dialect, sse(*events), framing(dialect))


answered = partial(read_answer, size=7)


@pytest.mark.parametrize(
    ("dialect", "document", "asked"),
    [
        (OPENAI_IMAGES, DRAW, Usage(images=1, completion_tokens=1056)),
        (OPENAI_IMAGES, DRAW | {"n": 3, "quality": "high"}, Usage(images=3, completion_tokens=12480)),
        (OPENAI_IMAGE_EDITS, EDIT, Usage(images=1, completion_tokens=1056)),
        (OPENAI_IMAGE_EDITS, EDIT | {"n": "2", "quality": "low"}, Usage(images=2, completion_tokens=544)),
        (OPENAI_IMAGE_EDITS, LINKED | {"n": 2}, Usage(images=2, completion_tokens=2112)),
        (OPENAI_IMAGE_VARIATIONS, {"image": PNG, "n": "3"}, Usage(images=3, completion_tokens=3168)),
        (OPENAI_SPEECH, SAY, Usage(characters=7, completion_tokens=13, audio_completion_tokens=13)),
    ],
)
def test_what_the_request_tells_of_its_cost(dialect: Dialect, document: dict[str, Any], asked: Usage) -> None:
    assert dialect.facts(document).asked == asked


def test_what_is_read_is_evidence_of_the_prompt() -> None:
    assert OPENAI_IMAGES.facts(DRAW).prompt == PromptEvidence(chars_latin=6)
    assert OPENAI_SPEECH.facts(SAY | {"instructions": "low"}).prompt == PromptEvidence(chars_latin=9, chars_wide=1)
    assert OPENAI_TRANSCRIPTIONS.facts(HEAR | {"prompt": "weir"}).prompt == PromptEvidence(chars_latin=4, attachments=1)


@pytest.mark.parametrize(
    ("dialect", "document", "expected"),
    [
        (OPENAI_IMAGES, DRAW | {"stream": True}, True),
        (OPENAI_SPEECH, SAY | {"stream_format": "sse"}, True),
        (OPENAI_SPEECH, SAY | {"stream_format": "audio"}, False),
        (OPENAI_TRANSCRIPTIONS, HEAR | {"stream": "true"}, True),
        (OPENAI_TRANSCRIPTIONS, HEAR | {"stream": "False"}, False),
        (OPENAI_TRANSCRIPTIONS, HEAR, False),
    ],
)
def test_whether_a_stream_is_asked_for(dialect: Dialect, document: dict[str, Any], expected: bool) -> None:
    assert dialect.facts(document).streamed is expected


@pytest.mark.parametrize(
    ("answer", "usage", "flags"),
    [
        ({"data": [{"b64_json": "a" * 99}], "usage": TOKENS}, GENERATED, ()),
        ({"data": [{"url": "u"}, {"url": "v"}]}, Usage(images=2), ()),
        ({"data": [{"url": "u"}], "usage": {"cost_in_usd_ticks": 7}}, Usage(images=1), ()),  # xAI
        ({"data": []}, Usage(images=0), ()),
        ({"created": 1}, None, ()),
        (
            {"data": [{}], "usage": TOKENS | {"total_tokens": 5}},
            structs.replace(GENERATED, total_tokens=5),
            ("total_mismatch",),
        ),
        ({"data": [{}], "usage": {"input_tokens": -1}}, Usage(images=1), ("usage_invalid",)),
    ],
)
def test_images_in_an_answer(answer: dict[str, Any], usage: Usage | None, flags: tuple[str, ...]) -> None:
    read = answered(OPENAI_IMAGES, answer)
    assert (read.usage, read.flags, read.complete) == (usage, flags, True)


def test_images_in_a_stream() -> None:
    partial = {"type": "image_generation.partial_image", "b64_json": "a" * 500}
    done = {"type": "image_generation.completed", "b64_json": "b" * 500}
    read = streamed(OPENAI_IMAGES, partial, done | {"usage": TOKENS})
    assert (read.usage, read.usage_raw, read.complete) == (GENERATED, TOKENS, True)
    assert streamed(OPENAI_IMAGES, done, done).usage == Usage(images=2)
    assert (streamed(OPENAI_IMAGES, partial).usage, streamed(OPENAI_IMAGES, partial).complete) == (None, False)
    assert streamed(OPENAI_IMAGES, partial, {"type": "error", "error": {"message": "no"}}).failed == "error_event"


def test_a_picture_of_megabytes_in_one_event_is_read() -> None:
    event = sse({"type": "image_generation.completed", "b64_json": "a" * (3 << 20), "usage": TOKENS})
    read = fed(OPENAI_IMAGES.stream_meter(framing(OPENAI_IMAGES)), in_pieces(event, 1 << 16))
    assert (read.usage, read.flags) == (GENERATED, ())


def test_speech_in_a_stream_and_as_audio() -> None:
    audio = {"type": "speech.audio.delta", "audio": "UklG"}
    tokens = {"input_tokens": 4, "output_tokens": 30, "total_tokens": 34}
    read = streamed(OPENAI_SPEECH, audio, audio, {"type": "speech.audio.done", "usage": tokens})
    assert read.usage == Usage(4, None, 30, None, 34, audio_completion_tokens=30)
    assert (read.complete, read.events, read.evidence.empty) == (True, 3, True)
    cut = streamed(OPENAI_SPEECH, audio)
    assert (cut.usage, cut.complete) == (None, False)
    plain = answered(OPENAI_SPEECH, b"ID3\x04" + bytes(900), size=100)
    assert (plain.usage, plain.complete, plain.flags, plain.evidence.empty) == (None, True, (), True)


def test_what_audio_does_not_say_its_request_does() -> None:
    facts = OPENAI_SPEECH.facts(SAY)
    spoken = answered(OPENAI_SPEECH, bytes(900))
    read = reading_of(spoken, prompt_tokens_estimate=5, bytes_seen=900, accepted=True, asked=facts.asked)
    assert read.usage == Usage(5, None, 13, None, 18, audio_completion_tokens=13, characters=7)
    assert (read.source, read.expected_error) == (UsageSource.ESTIMATED, 0.5)


DONE = {"type": "transcript.text.done", "text": "Over the weir."}
HEARD = {"type": "tokens", "input_tokens": 37, "output_tokens": 9, "total_tokens": 46}


@pytest.mark.parametrize(
    ("answer", "usage", "flags"),
    [
        (
            {"text": "Over the weir.", "usage": HEARD | {"input_token_details": {"audio_tokens": 35}}},
            Usage(37, None, 9, None, 46, audio_prompt_tokens=35),
            (),
        ),
        ({"text": "Over the weir.", "usage": {"type": "duration", "seconds": 4}}, Usage(audio_ms=4000), ()),
        ({"text": "Over the weir.", "duration": 5.495999813079834}, Usage(audio_ms=5496), ()),  # Venice, verbose_json
        ({"text": "Over the weir."}, None, ("audio_unknown",)),
        (
            {"text": "Over the weir.", "usage": {"type": "duration", "seconds": -4}},
            None,
            ("audio_unknown", "usage_invalid"),
        ),
        (b"Over the weir.", None, ("audio_unknown",)),
        ("Über\n".encode() * 2 + b"weir", None, ("audio_unknown",)),
    ],
)  # fmt: skip
def test_transcripts_in_an_answer(answer: Any, usage: Usage | None, flags: tuple[str, ...]) -> None:
    read = answered(OPENAI_TRANSCRIPTIONS, answer, size=3)
    assert (read.usage, read.flags, read.complete, read.evidence.chars_latin) == (usage, flags, True, 14)


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "transcript.text.delta", "delta": "Over the "}, {"type": "transcript.text.delta", "delta": "weir."}],
        [{"type": "transcript.text.segment", "text": "Over the weir.", "speaker": "A"}],
        [],
    ],
)
def test_transcripts_in_a_stream_are_counted_once(events: list[dict[str, Any]]) -> None:
    read = streamed(OPENAI_TRANSCRIPTIONS, *events, DONE | {"usage": HEARD})
    assert (read.usage, read.evidence.chars_latin, read.complete) == (Usage(37, None, 9, None, 46), 14, True)


def test_a_type_that_is_no_stream_is_none_whatever_was_asked() -> None:
    for dialect in (OPENAI_IMAGES, OPENAI_SPEECH, OPENAI_TRANSCRIPTIONS):
        assert dialect.framing("text/event-stream", streamed=False) is not None
        assert [dialect.framing(kind, streamed=True) for kind in ("audio/mpeg", "text/plain", "")] == [None] * 3


def test_a_file_shows_nowhere() -> None:
    assert "secret" not in f"{Upload('secret.mp3', 'audio/secret', b'secret')!r}"


@pytest.mark.parametrize(
    ("dialect", "document", "model", "images", "streamed"),
    [
        (OPENAI_IMAGE_EDITS, EDIT, "m", 2, False),
        (OPENAI_IMAGE_EDITS, EDIT | {"stream": "True", "mask": PNG}, "m", 3, True),
        (OPENAI_IMAGE_EDITS, LINKED, "m", 1, False),
        (OPENAI_IMAGE_VARIATIONS, {"image": PNG}, "dall-e-2", 1, False),
    ],
)
def test_given_pictures_are_part_of_the_prompt(
    dialect: Dialect, document: dict[str, Any], model: str, images: int, streamed: bool
) -> None:
    facts = dialect.facts(document)
    assert (facts.model, facts.prompt.images, facts.streamed) == (model, images, streamed)
