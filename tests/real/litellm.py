"""A real LiteLLM, as examples/conformance configures it: installed once, into the cache folder; where that is not
possible, its tests skip."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from tests.real.cached import python_environment

VERSION = "1.106.2"
EXAMPLES = Path(__file__).parents[2] / "examples" / "conformance"
START_S_MAX = 120.0
KEY = "sk-conformance"


def installed() -> Path:
    """The folder of its virtual environment. Skips the test where it cannot be installed."""
    return python_environment(f"litellm-{VERSION}", f"litellm[proxy]=={VERSION}")


class LiteLLM:
    """One proxy of LiteLLM in a folder of its own; what it would bill is in `bills`."""

    def __init__(self, folder: Path, *, port: int, provider_port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.bills = folder / "bills.jsonl"
        self.bills.touch()
        self._log = folder / "litellm.log"
        self._folder = folder
        config = (EXAMPLES / "litellm.yaml").read_text().replace(":9911", f":{provider_port}")
        (folder / "litellm.yaml").write_text(config)
        shutil.copy(EXAMPLES / "litellm_bills.py", folder)
        self._arguments = [
            str(installed() / "bin" / "litellm"),
            "--config",
            "litellm.yaml",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
        environment = {**os.environ, **quiet, "BILLS": str(self.bills)}
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                self._arguments, cwd=self._folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            assert self._child.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, self._log.read_text()[-3000:]
            time.sleep(0.2)

    def _answers(self) -> bool:
        with suppress(OSError), urlopen(f"{self.url}/health/liveliness", timeout=1) as answer:
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        """SIGKILL, with what it has started."""
        assert self._child is not None
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def main() -> None:
    print(installed())


if __name__ == "__main__":
    sys.exit(main())
