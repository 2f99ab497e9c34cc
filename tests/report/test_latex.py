"""Tables in LaTeX: their text is escaped, numbers are on the right, and pdflatex compiles them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tardygrad.errors import Invalid
from tardygrad.report.build import build
from tardygrad.results.comparison import Comparison, Contender
from tardygrad.results.latex import FIT, SPECIAL, SYMBOLS, escape, latex_table
from tardygrad.sweeps.trials import SweepResult
from tests.report.records import EVIL, ODD, record
from tests.report.test_sweeps import swept, trial
from tests.sweeps.test_compare import make_run, results

HOSTILE = (
    r"100% & more_of #1 for $5 {a} \input{x} ~ ^ ² ₁ ± − × ∞ √ α Ω λ ς – — … <b> | \" ` ' é Ž ß Ð ą 😀 👩‍🔬 中 "
    "\n\x1b\u00a0\u202e"
)


def test_a_table_has_rules_a_caption_and_bold_cells() -> None:
    rows = [("Clip²", "92.9% ± 0.6%", "–"), ("mine_2", "8%", "1.5×")]
    text = latex_table(("method", "score", "speed-up"), rows, caption="50% & more", label="tab:a", bold={(0, 1)})
    assert text.splitlines()[1:] == [
        r"\begin{table}",
        r"  \centering",
        r"  \caption{50\% \& more}",
        r"  \label{tab:a}",
        r"  \smallskip",
        rf"  {FIT}{{\begin{{tabular}}{{lrr}}",
        r"    \toprule",
        r"    method & score & speed-up \\",
        r"    \midrule",
        r"    Clip$^2$ & \textbf{92.9\% $\pm$ 0.6\%} & -- \\",
        r"    mine\_2 & 8\% & 1.5$\times$ \\",
        r"    \bottomrule",
        r"  \end{tabular}}",
        r"\end{table}",
    ]


def test_no_text_is_a_command() -> None:
    text = escape(EVIL + HOSTILE.replace("\u00a0", ""))
    known = [*SPECIAL.values(), *SYMBOLS.values(), r"$\alpha$", r"$\Omega$", r"$\lambda$", "$^2$", "$_1$"]
    known = sorted((value for value in known if len(value) > 1), key=len, reverse=True)
    bare = re.sub("|".join(map(re.escape, known)), "", text)
    assert not re.search(r"[\\{}$&#%_^~\n\x1b]", bare)
    assert "[U+1F600]" in bare
    assert "éŽß" in bare.replace(" ", "")


def test_a_label_that_would_be_a_command_is_refused() -> None:
    with pytest.raises(Invalid, match="`label` must consist of letters, digits"):
        latex_table(["a"], [["b"]], label="tab:50%")


def test_pdflatex_compiles_every_kind_of_table(tmp_path: Path) -> None:
    pdflatex = shutil.which("pdflatex")
    if pdflatex is None:
        pytest.skip("there is no pdflatex on this machine")
    for number, label in enumerate((HOSTILE, ODD, "sync-Clip²")):
        for seed in range(2):
            record(tmp_path / f"runs/{number}-{seed}", seed=seed, label=label, spec={"method": {"lr": number}})
    (runs,) = build([str(tmp_path / "runs")]).tables
    scores: list[list[float | None]] = [[0.9, 0.8], [0.7, 0.9], [0.5, 0.5], [None, 0.5]]
    contenders = [Contender(f"{i} {HOSTILE}", results(s, [1.0, 2.0]), 0.5, {}) for i, s in enumerate(scores)]
    compared = Comparison(
        contenders,
        score="my_score",
        higher=True,
        reference=contenders[0].name,
        target=0.5,
        confidence=0.95,
        notes=[HOSTILE],
    )
    sweep = swept([trial(i, HOSTILE, 0.1 * i, 0.1, 0.5) for i in range(1, 4)], goal=HOSTILE)
    tables = [runs, compared.to_latex(), SweepResult(sweep, make_run, [0]).to_latex(caption=HOSTILE)]
    head = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}\n"
    (tmp_path / "paper.tex").write_text(head + "\n".join(tables) + "\\end{document}\n", "utf-8")
    done = subprocess.run(
        [pdflatex, "-halt-on-error", "-interaction=nonstopmode", "paper.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60,
    )  # fmt: skip
    log = (tmp_path / "paper.log").read_text("utf-8", "replace")
    assert (done.returncode, re.findall(r"^!.*", log, re.MULTILINE)) == (0, [])
    assert "Missing character" not in log
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")
