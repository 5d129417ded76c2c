"""A console for each test that changes something, on a ledger of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.console.browsing import PATIENCE_MS, PHONE
from tests.console.stand import Stand
from tests.ledger.entries import a_ledger

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    engine = a_ledger(tmp_path)
    made = Stand(tmp_path, engine)
    yield made
    made.close()
    engine.dispose()


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One for all tests of a module that change nothing."""
    folder = tmp_path_factory.mktemp("unchanged")
    engine = a_ledger(folder)
    made = Stand(folder, engine)
    yield made
    made.close()
    engine.dispose()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new tab of a phone's size, where nothing may go wrong unseen."""
    context = browser.new_context(viewport=PHONE, locale="en-GB", reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    tab = context.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    yield tab
    context.close()
    # A refusal that the page shows in words is told by the browser too; 502: of a mail server.
    assert [one for one in wrong if not re.search("the server responded with a status of (4|502)", one)] == []
