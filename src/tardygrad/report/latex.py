"""Tables in LaTeX, with the rules of the package booktabs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "`": r"\textasciigrave{}",
}  # fmt: skip
SYMBOLS = {
    "²": "$^2$", "³": "$^3$", "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "∞": r"$\infty$", "≤": r"$\leq$",
    "≥": r"$\geq$", "≈": r"$\approx$", "α": r"$\alpha$", "β": r"$\beta$", "η": r"$\eta$", "δ": r"$\delta$",
    "Δ": r"$\Delta$", "‖": r"$\|$", "→": r"$\to$", "…": r"\dots{}", "–": "--", "—": "---", "\u00a0": "~",
}  # fmt: skip
ESCAPES = str.maketrans(SPECIAL | SYMBOLS)


def escape(text: str) -> str:
    r"""Text as LaTeX prints it, on one line: nothing in it is a command.

    >>> escape("SD-Clip², 50% of lr_0")
    'SD-Clip$^2$, 50\\% of lr\\_0'
    """
    return "".join(c if c.isprintable() or c == "\u00a0" else " " for c in text).translate(ESCAPES)


def latex_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    label: str = "",
    bold: Collection[tuple[int, int]] = (),
) -> str:
    r"""A table for a paper that has `\usepackage{booktabs}`. All text is escaped.

    Args:
        caption: what the table shows.
        label: what `\ref` calls it, such as tab:results.
        bold: the cells (row, column) in bold type, such as the best ones.
    """
    numeric = [all(row[i][:1] in "0123456789–−-+" for row in rows) for i in range(len(headings))]  # or empty
    columns = "".join("r" if each else "l" for each in numeric)

    def line(cells: Sequence[str]) -> str:
        return "    " + " & ".join(cells) + r" \\"

    body = [
        line([rf"\textbf{{{escape(cell)}}}" if (r, c) in bold else escape(cell) for c, cell in enumerate(row)])
        for r, row in enumerate(rows)
    ]
    head = line([escape(heading) for heading in headings])
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            *([rf"  \caption{{{escape(caption)}}}"] if caption else []),
            *([rf"  \label{{{label}}}"] if label else []),
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            head,
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )
