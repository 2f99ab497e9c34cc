"""Pages made from stored results are the committed ones, byte for byte; if a change is wanted, make them again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from experiments.tests.conftest import Script

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("argv", "name", "pictures"),
    [
        (("regime", "--read"), "regime.md", "regime-*.svg"),
        (("baselines", "--read"), "baselines.md", "baselines-*.svg"),
        (("figure1",), "reproduction.md", "timeline.svg"),
    ],
)
def test_a_page_and_its_pictures_are_those_of_the_stored_results(
    argv: tuple[str, ...], name: str, pictures: str, script: Script
) -> None:
    shutil.copytree(DOCS, "docs")
    page = Path("docs", name)
    sections = rf"(made by `python -m experiments.{argv[0]}` -->).*?(<!-- end of)"
    page.write_text(re.sub(sections, r"\1 \2", page.read_text("utf-8"), flags=re.DOTALL), "utf-8")
    for picture in Path("docs/images").glob(pictures):
        picture.unlink()
    assert script(*argv, "--page", str(page)).code == 0
    for path in (page, *Path("docs/images").glob(pictures)):
        assert path.read_bytes() == (DOCS / path.relative_to("docs")).read_bytes(), path
    assert len(list(Path("docs/images").iterdir())) == len(list((DOCS / "images").iterdir()))
