"""`compare`: the contenders of a spec side by side, and the library's comparison of their records."""

from __future__ import annotations

from pathlib import Path

import pytest

import tardygrad as tg
from tests.cli.conftest import Command

FEW = ["run.rounds=6", "run.evaluate_every=2", "--jobs", "2"]


def test_methods_of_a_spec_are_compared_with_the_same_seeds(tardygrad: Command) -> None:
    code, out, err = tardygrad("compare", "small.toml", "method.kind=clip2,fedbuff", *FEW, "--seeds", "2")
    assert code == 0, err
    assert err.startswith("fedbuff has no clip")
    assert "fedbuff, seed 1: finished after 6 rounds" in err
    heading, first, second, *_ = out.splitlines()
    assert heading.split()[:3] == ["method", "loss", "difference"]
    assert (first.split()[0], second.split()[0]) == ("Clip²", "FedBuff")
    assert "differences from Clip², paired by seed" in out
    assert out.splitlines()[-1] == "report with: tardygrad report runs/small-compare-1"
    spec = tg.load_spec("small.toml", ["run.rounds=6", "run.evaluate_every=2", "run.seed=1"])
    built = spec.build()
    assert built.fleet is not None
    how = {"rounds": 6, "evaluate_every": 2, "seed": 1}
    tg.simulate(built.method, built.task, built.fleet, out=Path("mine"), **how)  # type: ignore[arg-type]
    models = (
        Path(folder, "model.safetensors").read_bytes() for folder in ("mine", "runs/small-compare-1/clip2-seed-1")
    )
    assert len(set(models)) == 1
    assert tardygrad("report", "runs/small-compare-1").code == 0


def test_several_keys_make_every_combination_and_divergence_is_a_result(tardygrad: Command) -> None:
    found = tardygrad(
        "compare", "small.toml", "method.lr=0.5,3e38", "method.local_lr=0.1,0.2", "method.clip=inf", *FEW, "--json"
    ).json
    assert [row["runs"] for row in found["methods"]] == ["1"] * 4
    assert "1 of 1 diverged" in [row["loss"] for row in found["methods"]]
    assert len({row["method"] for row in found["methods"]}) == 4
    assert found["out"] == "runs/small-compare-1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ["method.lr=0.1"],
            "a comparison needs a key with several values, got method.lr=0.1. Write method.kind=clip2,",
        ),
        (["method.kind=clip2,fedbuf"], "Did you mean 'fedbuff'?"),
        (["method.lr=1,2", "run.evaluate_every=0"], "needs run.rounds and run.evaluate_every, got 12 and 0."),
    ],
)
def test_a_wrong_comparison_is_one_line_and_exit_code_2(tardygrad: Command, given: list[str], words: str) -> None:
    code, out, err = tardygrad("compare", "small.toml", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not Path("runs").exists()
