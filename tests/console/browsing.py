"""The console in a browser: how one gets in, and `tokenweir demo --full` with an operator whose steps are counted."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.console.stand import SECRET

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE_MS = 15_000
STEPS_MAX = 6
PHONE = {"width": 360, "height": 740}


def sign_in(page: Page, url: str, secret: str = SECRET) -> None:
    page.goto(url)
    page.wait_for_selector("#credential:focus")
    page.keyboard.type(secret)  # the field has the focus
    page.keyboard.press("Enter")
    page.wait_for_selector("nav", state="attached")  # on a phone it is in a drawer


def sign_out(page: Page) -> None:
    choose(page, "Signed in as", "Sign out")


def choose(page: Page, menu: str, action: str) -> None:
    """An action of a menu; by keyboard alone."""
    page.get_by_role("button", name=menu).focus()
    page.keyboard.press("Enter")
    page.get_by_role("menuitem", name=action, exact=True).focus()
    page.keyboard.press("Enter")


def heading(page: Page, words: str) -> None:
    page.get_by_role("heading", name=words, exact=True, level=1).wait_for()


def see(page: Page, view: str) -> str:
    """Go there; all that is said there, once it has been asked for."""
    page.evaluate(f"location.hash = '#/{view}'")
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    until(page, "!document.querySelector('.loading, .busy') && !!document.querySelector('.view')?.childElementCount")
    return page.inner_text("main")


def until(page: Page, true: str) -> None:
    """Wait for it; Playwright's own way needs an `eval`, which the page forbids."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(true):
        assert time.monotonic() < deadline, f"{true}: {page.inner_text('main')}"
        page.wait_for_timeout(20)


def width(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


class Demo:
    """`tokenweir demo --full`, and what it prints."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "proxy", "demo", "--full"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if re.fullmatch(r"   [0-9a-f]{64}\n", line):
                break
        self.printed = "".join(lines)
        found = re.search(r"(http://\S+)  \(sign in", self.printed)
        assert found is not None, self.printed
        self.url, self.secret = found[1], lines[-1].strip()

    def answer(self, question: str) -> str:
        """The line below a question that begins so."""
        lines = self.printed.splitlines()
        return next(after.strip() for one, after in pairwise(lines) if one.strip().startswith(question))

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=30)


class Operator:
    """Somebody at the console, whose steps are counted: a click, a choice, a text that is typed."""

    def __init__(self, page: Page) -> None:
        self.page, self.steps = page, 0

    def click(self, name: str, role: str = "link") -> None:
        self.steps += 1
        self.page.get_by_role(role, name=name, exact=True).first.click()  # type: ignore[arg-type]

    def choose(self, name: str, option: str) -> None:
        """`name`: of the field in its form."""
        self.steps += 1
        self.page.locator(f"select[name={name}]").select_option(label=option)

    def check(self, field: re.Pattern[str]) -> None:
        self.steps += 1
        self.page.get_by_label(field).check()

    def search(self, text: str) -> None:
        """From any page: open the search, type, take the first result."""
        self.steps += 3
        self.page.locator(".search-button").click()
        self.page.get_by_role("combobox", name="Search").fill(text)
        self.page.get_by_role("option").filter(has_text=text).first.click()

    def sees(self, *texts: str) -> None:
        """These texts are on the page, after at most STEPS_MAX steps."""
        for text in texts:
            self.page.get_by_text(text).first.wait_for(timeout=PATIENCE_MS)
        assert self.steps <= STEPS_MAX
