"""The container image, built as its file says, and run as compose.yaml and the chart run it: nobody's user, a read-only
root, no capability, its data in a volume."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from proxy import __version__
from proxy.demo.script import Shape
from tests.crash.stage import Stage, begin_stopping, charge, entries_of
from tests.deploy.containers import DATA, PYTHON, Contained, Engine
from tests.support import sse
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import PRICE, STOP_S_MAX, provider_section

# A build for the first time: its base image, 36 wheels, and their byte code.
pytestmark = [pytest.mark.external, pytest.mark.privileged, pytest.mark.timeout(600)]
ENVIRONMENT = {"PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "TOKENWEIR_HEALTH", "container"}
NAMES = ("whole", "cut", "last")
# Ends well within the time for running streams, or never.
SHORT, LONG = Shape("openai", tokens=20, pace_ms=20), Shape("openai", tokens=2_000, pace_ms=20)
LOOK = """
import glob, importlib.metadata as m, json, os, sys
site, = glob.glob("/opt/tokenweir/lib/python3.*/site-packages")
json.dump({
    "python": "%d.%d" % sys.version_info[:2],
    "ids": [os.getuid(), os.getgid()],
    "distributions": sorted(d.name for d in m.distributions(path=[site])),
    "packages": sorted(os.listdir(site)),
    "compiled": os.path.exists(site + "/proxy/__pycache__/__main__.cpython-%d%d.pyc" % sys.version_info[:2]),
    "source": os.path.exists("/src"),
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    return engine.built()


@pytest.fixture
def contained(
    engine: Engine, image: str, tmp_path: Path, provider: ScriptedProvider
) -> Iterator[Callable[..., Contained]]:
    made: list[Contained] = []

    def make(**settings: Any) -> Contained:
        providers = {"scripted": provider_section(provider.base_url)}
        made.append(Contained(engine, image, tmp_path / f"{len(made)}", providers=providers, **settings))
        return made[-1].start()

    yield make
    for one in made:
        one.close()


def looked(engine: Engine, image: str) -> dict[str, Any]:
    """What Python finds in the image."""
    printed = engine("run", "--rm", "--network", "none", "--entrypoint", "python", image, "-c", LOOK).stdout
    return dict(json.loads(printed))


def test_it_holds_what_runs_and_nothing_else(engine: Engine, image: str, capsys: pytest.CaptureFixture[str]) -> None:
    about = engine.inspect(image)
    config = about["Config"]
    assert (config["User"], config["Entrypoint"], config["StopSignal"]) == ("10001:10001", ["tokenweir"], "SIGTERM")
    assert config["Volumes"] == {DATA: {}}
    assert about["Healthcheck"]["Test"][0] == "CMD"
    assert not [one for one in config["Env"] if one.partition("=")[0] not in ENVIRONMENT]
    found = looked(engine, image)
    assert (found["python"], found["ids"]) == (PYTHON, [10001, 10001])
    assert {"tokenweir", "uvloop"} <= set(found["distributions"])
    assert {"pip", "setuptools", "pytest", "botocore"}.isdisjoint(found["distributions"])
    assert "proxy" in found["packages"]
    assert {"tests", "migrations"}.isdisjoint(found["packages"])
    assert found["compiled"]
    assert not found["source"]
    assert engine("run", "--rm", "--network", "none", image, "--version").stdout == f"tokenweir {__version__}\n"
    base_bytes = engine.inspect(engine.base())["Size"]
    with capsys.disabled():
        print(f"\nimage: {(about['Size'] - base_bytes) / 1e6:.0f} MB over its base image")


async def test_a_stream_is_billed_a_stop_drains_and_a_kill_loses_nothing(
    contained: Callable[[], Contained], provider: ScriptedProvider
) -> None:
    running = contained()
    assert running.healthy()
    key = json.loads(running.inside("tokenweir", "keys", "create", "--alias", "alice"))["key"]
    whole, cut, last = (provider.script(f"contained-{name}", LONG if name == "cut" else SHORT) for name in NAMES)
    async with Stage(running, key) as stage:
        response = await stage.whole(whole)
        assert (response.ended, sse.done(response.body)) == ("complete", True)
        entries_of(running, whole)
        client, response = await stage.begin(cut)
        running.kill()
        await client.read_body(response)
        assert response.ended != "complete"
    assert not running.healthy()
    running.start()
    async with Stage(running, key) as stage:
        client, response = await stage.begin(last)
        await begin_stopping(running)
        assert not running.healthy()
        await client.read_body(response)
        assert (response.ended, sse.done(response.body)) == ("complete", True)
    assert running._wait(STOP_S_MAX) == 0
    found = dict(zip(NAMES, entries_of(running, whole, cut, last), strict=True))
    assert [(found[name]["usage_source"], found[name]["completion_tokens"]) for name in ("whole", "last")] == [
        ("reported", SHORT.tokens)
    ] * 2
    assert found["cut"]["outcome"] == "crashed"
    assert Decimal(found["cut"]["charge_usd"]) > 0
    assert [Decimal(found[name]["charge_usd"]) for name in ("whole", "last")] == [
        charge(found[name], PRICE) for name in ("whole", "last")
    ]
    assert running.command("reconcile", "--grace", "1s").returncode == 0
    assert Contained.PROVIDER_KEY not in running.log.read_text()


@pytest.mark.usefixtures("image")  # whose layers it begins with
def test_extras_are_a_build_argument(engine: Engine) -> None:
    found = set(looked(engine, engine.built("bedrock,otlp", "--target", "build"))["distributions"])
    assert {"tokenweir", "botocore", "opentelemetry-exporter-otlp-proto-http"} <= found
    assert {"pip", "setuptools", "pyarrow"}.isdisjoint(found)
    with pytest.raises(AssertionError, match=r"requirements/extras/bedrok\.txt"):
        engine.built("bedrok")
