"""A new dialect touches one folder and its list, a new sink likewise: shown on a copy of the program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from email.message import Message
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.http_server import answering
from tests.support.tokenweir import COMMAND, PRICE, ROOT, Tokenweir

DIALECT = '''
"""A toy's dialect: one path, one answer."""

from typing import Any

from proxy.metering.counts import with_total
from proxy.metering.dialect import Dialect
from proxy.metering.refusal import ErrorShape
from proxy.metering.request import RequestFacts, model_of
from proxy.metering.tally import Tally
from proxy.metering.usage import PromptEvidence
from proxy.metering.usage_reader import UsageReader
from proxy.metering.wire.json_reader import reader

_answer = reader(dict[str, Any])
_reported = UsageReader(prompt_tokens="heard", completion_tokens="spoken")


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    return RequestFacts(
        model=named or model_of(document), streamed=False, usage_asked=False, completion_tokens_max=None, n=1,
        prompt=PromptEvidence(messages=1, chars_latin=len(document["text"])),
    )


class ToyTally(Tally):
    def read(self, event: bytes, name: bytes) -> None:
        return None

    def read_answer(self, body: bytes) -> bool:
        answer = _answer(body)
        if answer is None:
            return False
        self.done = True
        self._report(answer["used"], with_total(_reported(answer["used"], self.flags)))
        return True


def _refused(refusal: Any) -> dict[str, Any]:
    return {"toy_error": refusal.message}


TOY = Dialect(
    name="toy.talk", paths=("/toys/talk",), facts=facts, tally=ToyTally,
    errors=ErrorShape("/toys/", _refused, _refused), operation="toy_talk",
)
'''
SINK = '''
"""A toy's sink: a plain line for each entry, in a colour."""

from dataclasses import dataclass

from proxy.settings.fields import setting
from proxy.settings.sinks import SinkSettings, event_name
from proxy.sinks.format import SinkEvent, SinkFormat, SinkKind, SinkRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySettings(SinkSettings):
    colour: str = setting(event_name(), "the colour of the lines")


class ToyFormat(SinkFormat[ToySettings]):
    batch_max = 1

    def events(self, source):
        return [SinkEvent(source.entry.entry_id, {"line": f"{source.entry.model} {source.entry.charge_nusd}"})]

    def request(self, events, unix_s):
        line = f"{self._settings.colour} {events[0].event_id} {events[0].fields['line']}"
        return SinkRequest(self._settings.url, line.encode(), self._bearer())


TOY = SinkKind("toy", ToySettings, ToyFormat)
'''
NEW = {"metering/dialects/toy": DIALECT, "sinks/toy": SINK}
LISTS = {
    "metering/dialects/__init__.py": ("proxy.metering.dialects.toy.toy", "DIALECTS: tuple[Dialect, ...] = (\n"),
    "sinks/kinds.py": ("proxy.sinks.toy.toy", "KINDS: tuple[SinkKind, ...] = (\n"),
}


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a copy that has a dialect and a sink more."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "proxy", root / "proxy")  # with what is compiled
    for folder, text in NEW.items():
        (root / "proxy" / folder).mkdir()
        (root / "proxy" / folder / "__init__.py").touch()
        (root / "proxy" / folder / "toy.py").write_text(text)
    for name, (module, opening) in LISTS.items():
        file = root / "proxy" / name
        before, found, after = file.read_text().partition(opening)
        assert found
        future = "from __future__ import annotations\n"
        file.write_text(before.replace(future, f"{future}from {module} import TOY\n") + found + "    TOY,\n" + after)
    return root


REPORT = """
import json, proxy
from proxy.metering.dialects import DIALECTS
from tests.docs.settings_reference import reference
from proxy.telemetry.traces.span import span_of
from tests.ledger.entries import a_record
from msgspec.structs import replace
spans = [span_of(replace(a_record(1), opened=replace(a_record(1).opened, endpoint="/toys/talk"))).name]
paths = sorted({path for dialect in DIALECTS for path in dialect.paths})
print(json.dumps([proxy.__file__, paths, reference(), spans]))
"""


@pytest.mark.process
def test_all_tables_have_it(extended: Path) -> None:
    """Routes and edges (both made of the paths), providers' settings, the reference, names of spans."""
    environment = {**os.environ, "PYTHONPATH": f"{extended}{os.pathsep}{ROOT}"}
    printed = subprocess.check_output([sys.executable, "-c", REPORT], env=environment, cwd=extended, timeout=60)
    file, paths, reference, (span,) = json.loads(printed)
    assert file.startswith(str(extended))
    assert "/toys/talk" in paths
    assert span.startswith("toy_talk ")
    assert "`toy.talk`" in next(line for line in reference.splitlines() if "`providers.<name>.dialects`" in line)
    assert "`toy` or" in next(line for line in reference.splitlines() if "`sinks.<name>.kind`" in line)
    assert "| `sinks.<name>.colour` | a name of A-Z a-z 0-9 _ . : - | *required* | `toy`: the colour" in reference


@pytest.mark.process
@pytest.mark.thorough
def test_an_exchange_is_billed_and_pushed(extended: Path, tmp_path: Path) -> None:
    got: list[tuple[str, bytes]] = []

    def answer(path: str, _: Message, body: bytes) -> tuple[int, bytes]:
        """Provider and receiver in one."""
        got.append((path, body))
        return 200, json.dumps({"said": "hi", "used": {"heard": 7, "spoken": 5}}).encode()

    with answering(answer) as url:
        running = Tokenweir(
            tmp_path / "run",
            providers={"toys": {"base_url": url, "dialects": ["toy"]}},
            models={"*": {"provider": "toys", "price": PRICE}},
            sinks={"lines": {"kind": "toy", "url": f"{url}/lines", "secret": "${HOOK}", "colour": "green"}},
        )
        running.program = COMMAND  # of the extended program
        running.environment |= {"PYTHONPATH": str(extended), "HOOK": "toy-key"}
        try:
            made = running.start().command("keys", "create", "--alias", "test")  # of the extended program
            key = json.loads(made.stdout)["key"]
            request = Request(
                f"{running.url}/toys/talk",
                json.dumps({"model": "bear", "text": "hello"}).encode(),
                {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            )
            with urlopen(request, timeout=20) as answer:
                assert json.loads(answer.read())["said"] == "hi"
            (entry,) = running.entries(1)
            usage = (entry["endpoint"], entry["usage_source"], entry["prompt_tokens"], entry["completion_tokens"])
            assert usage == ("/toys/talk", "reported", 7, 5)
            lines: list[bytes] = []
            deadline = time.monotonic() + 20
            while not lines and time.monotonic() < deadline:
                time.sleep(0.02)
                lines = [body for path, body in got if path == "/lines"]
        finally:
            running.close()
    assert got[0][0] == "/talk"
    charge = 7 * 130 + 5 * 410
    assert [line.decode() for line in lines] == [f"green {entry['entry_id']} bear {charge}"]
