"""What the demo leaves running for a newcomer: a proxy, and a console that its secret opens."""

from __future__ import annotations

import signal
from pathlib import Path

import aiohttp
import pytest

from proxy.cli import main
from proxy.demo.tour import Deployment


def test_other_commands_use_it_with_the_variables_that_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in Deployment(tmp_path, "http://127.0.0.1:1").variables.items():
        monkeypatch.setenv(name, value)
    assert main(["config", "check"]) == 0


@pytest.mark.process
@pytest.mark.thorough
async def test_the_demo_has_a_console_of_its_own(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "http://127.0.0.1:1")
    await deployment.start()
    try:
        async with aiohttp.ClientSession() as session:
            answers = []
            for secret in (deployment.admin_secret, "0" * 64):
                headers = {"Authorization": f"Bearer {secret}"}
                async with session.get(f"{deployment.console_url}/v1/live", headers=headers) as answer:
                    answers.append(answer.status)
            async with session.get(deployment.console_url) as page:
                answers.append(page.status)
        assert answers == [200, 401, 200]
    finally:
        await deployment.end(signal.SIGTERM)
