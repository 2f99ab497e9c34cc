"""The documentation site: `make docs` writes it to build/docs, without the network."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = "tardygrad"
author = "the authors of tardygrad"
copyright = "the authors of tardygrad, Apache-2.0"
release = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
smartquotes = False  # quotes in text are often those of code
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures, most of them other packages'; links are still checked

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures of forty settings stay readable; the text says what each one takes
default_role = "code"  # of docstrings
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"tardygrad {release}"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}


def _literal_blocks(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Show the indented equations of a docstring as they are written: reStructuredText takes them for quotes."""
    lines[:] = re.sub(r"\n\n(?=    \S)", "\n\n::\n\n", "\n".join(lines)).splitlines()


def setup(app: object) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", _literal_blocks, priority=400)  # type: ignore[attr-defined]
