"""Tables in LaTeX: their text is escaped, numbers are on the right."""

from __future__ import annotations

import re

from tardygrad.report.latex import ESCAPES, escape, latex_table
from tests.report.records import EVIL


def test_a_table_has_rules_a_caption_and_bold_cells() -> None:
    rows = [("Clip²", "92.9% ± 0.6%", "–"), ("mine_2", "8%", "1.5×")]
    text = latex_table(("method", "score", "speed-up"), rows, caption="50% & more", label="tab:a", bold={(0, 1)})
    assert text.splitlines()[1:] == [
        r"\begin{table}",
        r"  \centering",
        r"  \caption{50\% \& more}",
        r"  \label{tab:a}",
        r"  \begin{tabular}{lrr}",
        r"    \toprule",
        r"    method & score & speed-up \\",
        r"    \midrule",
        r"    Clip$^2$ & \textbf{92.9\% $\pm$ 0.6\%} & -- \\",
        r"    mine\_2 & 8\% & 1.5$\times$ \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]


def test_no_text_is_a_command() -> None:
    text = escape(EVIL + "\\input{/etc/passwd}$x$ 100% # ~^_&\n\x1b\u00a0|`")
    known = sorted((value for value in ESCAPES.values() if value not in ("''", "--", "---")), key=len, reverse=True)
    bare = re.sub("|".join(map(re.escape, known)), "", text)
    assert not re.search(r"[\\{}$&#%_^~\n\x1b]", bare)
