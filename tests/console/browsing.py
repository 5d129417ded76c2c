"""The console in a browser: how one gets in, and how long a test waits for what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.console.stand import SECRET

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE_MS = 15_000


def sign_in(page: Page, url: str, secret: str = SECRET) -> None:
    page.goto(url)
    page.wait_for_selector("#credential:focus")
    page.keyboard.type(secret)  # the field has the focus
    page.keyboard.press("Enter")
    page.wait_for_selector("nav", state="attached")  # on a phone it is in a drawer
