"""A report on whatever stands in some directories: runs, folders of runs, sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tardygrad import sweep
from tardygrad.errors import Invalid
from tardygrad.report.blocks import Part
from tardygrad.report.page import Live, html
from tardygrad.report.parts import parts
from tardygrad.report.read import Story, find, read, text
from tardygrad.report.sweeps import sweep_parts

FILES = ("spec.json", "events.jsonl", "summary.json", "sweep.json", "study.db", "study.db-wal")


class Report(NamedTuple):
    """A report that has not been written yet."""

    title: str
    parts: list[Part]
    stories: list[Story]

    def html(self, live: Live | None = None) -> str:
        """The page."""
        return html(self.title, self.parts, live=live)


def tell(
    places: Sequence[str], *, title: str | None = None, baseline: str | None = None, target: float | None = None
) -> Report:
    """Read the runs and sweeps, and say what there is to say.

    Args:
        places: directories of runs or sweeps, or folders with runs somewhere below them.
        baseline: the name or the label of what speed-ups are over.
        target: the test accuracy to be reached, or the test loss where there is no accuracy.
    """
    swept = [place for place in places if (Path(place) / "sweep.json").exists()]
    stories = [read(path) for path in find([place for place in places if place not in swept])]
    if baseline is not None and not stories:
        raise Invalid(f"--baseline is for runs, got {baseline!r} and only sweeps.")
    told = parts(stories, baseline=baseline, target=target) if stories else []
    for number, place in enumerate(swept, 1):
        told += sweep_parts(sweep.read(place), text(Path(place).resolve().name), number)
    return Report(text(title, 200) if title else _title(stories, swept), told, stories)


def _title(stories: list[Story], swept: list[str]) -> str:
    if len(stories) == 1 and not swept:
        return f"{stories[0].label}: {text(stories[0].path.resolve().name)}"
    named = [f"{len(stories)} runs"] * bool(stories) + [f"sweep {text(Path(place).resolve().name)}" for place in swept]
    return " and ".join(named)


def state(places: Sequence[str]) -> str:
    """A token that changes whenever a record does."""
    found = []
    for place in map(Path, places):
        folders = [place] if any((place / name).exists() for name in FILES) else find([str(place)])
        for path in (folder / name for folder in folders for name in FILES):
            if path.exists():
                stat = path.stat()
                found.append(f"{stat.st_size:x}.{stat.st_mtime_ns:x}")
    return "-".join(found)
