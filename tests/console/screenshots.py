"""Pictures of the console for the docs, from `tokenweir demo --full`: `python -m tests.console.screenshots` takes them.

Invariant: a picture is taken only if the page shows the number that the demo prints as the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.console.browsing import PATIENCE_MS, Demo, sign_in
from tests.support.browser import CHROMIUM, FLAGS

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SIZE = {"width": 1280, "height": 800}


def usage(page: Page, demo: Demo) -> None:
    before, after = re.findall(r"([\d.]+) → ([\d.]+)", demo.answer("Why does Contoso"))[0]
    page.goto(f"{demo.url}#/usage?organization_id=org_contoso-health&compare=1")
    page.get_by_role("button", name="Explain change").click()
    for usd in (before, after):
        page.get_by_text(f"${float(usd):.4f}").first.wait_for()


def request(page: Page, demo: Demo) -> None:
    page.goto(f"{demo.url}#/requests/{demo.answer('Where is response').partition(':')[0]}")
    page.get_by_text("154 output tokens").wait_for()


def overview(page: Page, demo: Demo) -> None:
    page.goto(f"{demo.url}#/overview")
    page.get_by_text("Contoso Health").first.wait_for()


PICTURES: dict[str, Callable[[Page, Demo], None]] = {
    "console-overview.png": overview,
    "console-usage.png": usage,
    "console-request.png": request,
}


def main() -> None:
    """Take all pictures."""
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    demo = Demo()
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport=SIZE)
            page.set_default_timeout(PATIENCE_MS)
            sign_in(page, demo.url, demo.secret)
            for name, show in PICTURES.items():
                show(page, demo)
                page.wait_for_timeout(500)
                page.screenshot(path=FOLDER / name)
            browser.close()
    finally:
        demo.end()


if __name__ == "__main__":
    main()
