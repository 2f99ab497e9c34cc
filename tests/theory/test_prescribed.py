"""`schedule="theory"`: numbers become the theorem's power laws, in Python, in specs and in records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tardygrad as tg
from tardygrad.errors import Invalid
from tardygrad.spec import spec
from tardygrad.theory.prescribed import prescribed
from tests.cli.conftest import Command, tardygrad  # noqa: F401

SETTINGS = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0}
HOW = {"buffer": 2, "local_steps": 3}


@pytest.mark.parametrize(
    ("word", "treated", "exponents"),
    [
        ("theory", {}, (-1 / 2, -3 / 8, 1 / 4)),
        ("theory", {"compensate": True}, (-1 / 2, -3 / 8, 1 / 4)),
        ("theory-tolerant", {}, (-3 / 4 + 1 / 6, -1 / 3, 1 / 6)),
        ("theory-unknown-tail", {}, (-1 / 2, -1 / 4, 1 / 6)),
        ("theory", {"downplay": True}, (-5 / 8, -1 / 4, 1 / 6)),
    ],
)
def test_a_word_chooses_the_exponents(word: str, treated: dict[str, bool], exponents: tuple[float, ...]) -> None:
    at = prescribed("clip2", word, 1.5, **treated)
    for name, exponent in zip(("lr", "local_lr", "local_clip"), exponents, strict=True):
        law = at(name, 0.3)
        assert isinstance(law, tg.Power)
        assert (law.value, law.exponent) == (0.3, pytest.approx(exponent))
    assert at("clip", 0.3) == (tg.Power(0.3, 0.125) if treated.get("downplay") else 0.3)


def test_a_method_with_the_theorys_schedule_is_that_with_its_power_laws() -> None:
    task, fleet = tg.tasks.quadratic(clients=8), tg.Fleet.paper(clients=8)
    powers = {"lr": tg.Power(1.0, -0.5), "local_lr": tg.Power(0.1, -0.375), "local_clip": tg.Power(1.0, 0.25)}
    ours = tg.clip2(**SETTINGS, clip=0.1, **HOW, schedule="theory", tail=1.5)
    same, other = tg.clip2(**powers, clip=0.1, **HOW), tg.clip2(**SETTINGS, clip=0.1, **HOW)
    x, y, z = (tg.simulate(one, task, fleet, rounds=20).x for one in (ours, same, other))
    assert x.equal(y)
    assert not x.equal(z)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (
            {"tail": None},
            "schedule='theory' needs `tail`, the noise's tail index, got none. Try tail=1.5.",
        ),
        ({"schedule": None}, "`schedule` must be one of constant, theory, got None."),
        (
            {"schedule": "constant", "tail": 9},
            "`tail` is only used by the theory's schedules, got tail=9. Add schedule='theory'.",
        ),
        ({"lr": tg.Power(5.0, -0.5)}, r"`lr` must be a finite number with schedule='theory', got Power.* Give lr=5."),
        ({"local_clip": float("inf")}, "`local_clip` must be a finite number with schedule='theory', got inf"),
        ({"compensate": True}, "no schedule for 'dc-sgdclip'"),
        ({"schedule": "theory-tolerant"}, "`schedule` must be one of constant, theory, got 'theory-tolerant'"),
    ],
)
def test_what_the_theory_does_not_cover_is_refused(changed: dict[str, object], complaint: str) -> None:
    given = {**SETTINGS, **HOW, "schedule": "theory", "tail": 1.5} | changed
    with pytest.raises(Invalid, match=complaint):
        tg.sgdclip(**given)  # type: ignore[arg-type]


def test_a_spec_and_its_record_keep_the_word(tardygrad: Command) -> None:  # noqa: F811
    words = ["method.schedule=theory", "method.tail=1.5"]
    assert tardygrad("run", "small.toml", *words, "--out", "whole").code == 0
    assert tardygrad("run", "small.toml", *words, "run.rounds=6", "--out", "half").code == 0
    assert tardygrad("resume", "half", "run.rounds=12").code == 0
    assert Path("half/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    recorded = json.loads(Path("whole/spec.json").read_text())["spec"]
    assert (recorded["method"]["schedule"], recorded["method"]["tail"], recorded["method"]["lr"]) == ("theory", 1.5, 1)
    assert spec.parse(recorded).resolved() == recorded
    assert tardygrad("replay", "whole").code == 0
    told = tardygrad("run", "quadratic", *words)
    assert (told.code, "Give lr=5." in told.err) == (2, True)
