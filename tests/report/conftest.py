"""A page is opened in a real browser, and whatever it asks for or complains of is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Open an address; at the end, nothing else was asked for and nothing complained of."""
    contexts: list[Any] = []
    asked: list[str] = []
    complaints: list[str] = []
    allowed: list[str] = []

    def open(address: str, *, also: tuple[str, ...] = (), **how: Any) -> Any:
        context = browser.new_context(viewport={"width": 1100, "height": 900}, **how)
        contexts.append(context)
        page = context.new_page()
        allowed.extend((address, *also))
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.goto(address)
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        return page

    yield open
    for context in contexts:
        context.close()
    assert not complaints
    assert [url for url in asked if url not in allowed] == []
