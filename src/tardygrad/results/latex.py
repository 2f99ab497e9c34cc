"""Tables in LaTeX, with the rules of the package booktabs, and no wider than the text.

They compile with pdflatex, whatever is in them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence

from tardygrad.errors import Invalid
from tardygrad.results.blocks import numeric_columns

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "`": r"\textasciigrave{}",
}  # fmt: skip
SYMBOLS = {
    "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "∞": r"$\infty$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$",
    "≠": r"$\neq$", "·": r"$\cdot$", "°": r"$^\circ$", "‖": r"$\|$", "→": r"$\to$", "∈": r"$\in$", "√": r"$\surd$",
    "…": r"\dots{}", "–": "--", "—": "---", "‘": "`", "’": "'", "“": "``", "”": "''", "\u00a0": "~",
}  # fmt: skip
GREEK = [
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
    "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi",
    "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega",
]  # fmt: skip
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"  # shrinks a table that is too wide
LETTERS = "ßæøœłıÆØŒŁ"  # that pdflatex knows, besides those with the accents
ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"


def escape(text: str) -> str:
    r"""Text as LaTeX prints it, on one line: nothing in it is a command, and what pdflatex lacks appears as its code.

    >>> escape("SD-Clip², 50% of lr_0 😀")
    'SD-Clip$^2$, 50\\% of lr\\_0 [U+1F600]'
    """
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in SPECIAL or character in SYMBOLS:
        return SPECIAL.get(character) or SYMBOLS[character]
    if character.isascii() or not character.isprintable():
        return character if character.isprintable() else " "
    kind, *parts = unicodedata.decomposition(character).split()[:2] or ["", ""]
    if kind in ("<super>", "<sub>") and parts[0] <= "007A":
        return f"${'^' if kind == '<super>' else '_'}{chr(int(parts[0], 16))}$"
    match unicodedata.name(character, "").split():
        case ["GREEK", "SMALL" | "CAPITAL" as size, "LETTER", name]:
            command = name.replace("LAMDA", "LAMBDA").lower()
            command = command.capitalize() if size == "CAPITAL" else command
            if command in GREEK:
                return rf"$\{command}$"
    letter, accent = unicodedata.normalize("NFD", character)[:1], unicodedata.normalize("NFD", character)[1:]
    known = character in LETTERS or (letter.isascii() and accent in ACCENTS and len(accent) == 1)
    return character if known else f"[U+{ord(character):04X}]"


def latex_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    label: str = "",
    bold: Collection[tuple[int, int]] = (),
) -> str:
    r"""A table for a paper that has `\usepackage{booktabs,graphicx}`. All text is escaped.

    Args:
        caption: what the table shows.
        label: what `\ref` calls it, such as tab:results.
        bold: the cells (row, column) in bold type, such as the best ones.
    """
    if not re.fullmatch(r"[\w:./+ -]*", label, re.ASCII):
        raise Invalid(f"`label` must consist of letters, digits and : . / + - _, got {label!r}. Use tab:results.")
    columns = "".join("r" if numeric else "l" for numeric in numeric_columns(rows, len(headings)))

    def line(cells: Sequence[str]) -> str:
        return "    " + " & ".join(cells) + r" \\"

    body = [
        line([rf"\textbf{{{escape(cell)}}}" if (r, c) in bold else escape(cell) for c, cell in enumerate(row)])
        for r, row in enumerate(rows)
    ]
    head = line([escape(heading) for heading in headings])
    return "\n".join(
        [
            r"% needs \usepackage{booktabs,graphicx}",
            r"\begin{table}",
            r"  \centering",
            *([rf"  \caption{{{escape(caption)}}}"] if caption else []),
            *([rf"  \label{{{label}}}"] if label else []),
            r"  \smallskip",
            rf"  {FIT}{{\begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            head,
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}}",
            r"\end{table}",
            "",
        ]
    )
