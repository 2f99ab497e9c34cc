"""The documentation site: built without warnings, its links lead somewhere, it works offline."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlparse

import pytest

pytest.importorskip("furo")

ROOT = Path(__file__).parent.parent
HOSTS = {
    "docs.ray.io",
    "flower.ai",
    "github.com",
    "keepachangelog.com",
    "semver.org",
}
"""The hosts of all external links. They are not fetched here: look at a link before you add its host."""


class Page(HTMLParser):
    """The links, the anchors and the resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.resources: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag == "a" and (link := found.get("href")):
            self.links.add(link)
        elif resource := found.get("src") or (tag == "link" and found.get("href")):
            self.resources.add(str(resource))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-n", "-W", "--keep-going", "docs", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_links_inside_the_site_lead_somewhere_and_others_to_known_hosts(pages: dict[Path, Page]) -> None:
    missing = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlparse(link)
            if parts.scheme:
                assert (parts.scheme, parts.hostname in HOSTS) == ("https", True), f"{path.name}: {link}"
                continue
            file, anchor = urldefrag(unquote(link))
            target = (path.parent / file).resolve() if file else path
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                missing.append(f"{path.name}: {link}")
    assert not missing


def test_no_page_loads_anything_from_the_network(pages: dict[Path, Page]) -> None:
    loaded = {resource for page in pages.values() for resource in page.resources}
    assert any(urlparse(resource).path.endswith(".css") for resource in loaded)
    assert not [resource for resource in loaded if urlparse(resource).netloc]


def test_search_works_without_a_server(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto(f"{site.as_uri()}/search.html?q=straggler")
    page.wait_for_selector("ul.search li a")
    assert "Real stragglers" in page.locator("ul.search li a").all_inner_texts()
    page.close()
