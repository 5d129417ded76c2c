"""The conformance suite against LiteLLM, and the result that is published beside ours."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.cli import main
from proxy.conformance.cases import selected
from tests.conformance.restarting import Restarting
from tests.real.litellm import KEY, VERSION, LiteLLM
from tests.support.net import free_port

pytestmark = pytest.mark.real

# It books nothing in some runs, as the page says.
AT_TIMES = {"chat-client-leaves-early"}
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-a-gateway.md"


@pytest.fixture
def litellm(tmp_path: Path) -> Iterator[tuple[LiteLLM, int]]:
    """It listens; and the port at which it looks for its provider."""
    port = free_port()
    gateway = LiteLLM(tmp_path, port=free_port(), provider_port=port)
    gateway.start()
    yield gateway, port
    gateway.kill()


def published() -> dict[str, str]:
    """Case → LiteLLM's verdict, of the page's table: the rows where a gateway is not right."""
    rows = re.findall(r"^\| (`[a-z*`, -]+`) \|.*\| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows
    return {
        case.upstream_model: verdict for names, verdict in rows for case in selected(re.findall(r"[a-z*-]+", names))
    }


def test_what_is_published_of_litellm_is_so(litellm: tuple[LiteLLM, int], capsys: pytest.CaptureFixture[str]) -> None:
    gateway, port = litellm
    with Restarting(gateway) as restarting:
        options = {
            "gateway": gateway.url,
            "key": KEY,
            "bills": f"cat {shlex.quote(str(gateway.bills))}",
            "provider": f"127.0.0.1:{port}",
            "restart": restarting.command,
        }
        main(["conformance", "--json", *(word for name, value in options.items() for word in (f"--{name}", value))])
    results = [json.loads(line) for line in capsys.readouterr().out.split("\n") if line]
    wrong = {one["case"] for one in results if not one["right"]}
    with capsys.disabled():
        print(f"\nLiteLLM {VERSION}: {len(results) - len(wrong)} of {len(results)} cases are right")
        for one in results:
            if one["case"] in wrong:
                print(f"  {one['case']}: {one['relayed']}; {one['billed']}")
    assert f"LiteLLM {VERSION}" in PAGE.read_text()
    named = {case for case, verdict in published().items() if verdict != "right"}
    assert named <= wrong <= named | AT_TIMES
