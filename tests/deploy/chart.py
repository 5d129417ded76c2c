"""Helm's templates, rendered by helm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "tokenweir"
RELEASE = "tw"
# The oldest that the chart takes; a helm that Go built takes none newer than 1.20 for granted.
KUBERNETES = "1.27.0"


def rendered(values: dict[str, Any]) -> str:
    """What `helm template` makes; skips the test where there is no helm. Debian has none: .ci/run builds it with Go."""
    helm = shutil.which("helm") or shutil.which("helm", path=Path.home() / "go" / "bin")
    if helm is None:
        pytest.skip("helm is not installed here: the chart was not rendered")
    done = subprocess.run(
        [helm, "template", RELEASE, str(CHART), "--kube-version", KUBERNETES, "--values", "-"],
        input=yaml.safe_dump(values), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
