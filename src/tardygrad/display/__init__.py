"""How results are shown: colours and styles of figures, figures with their data, tables in LaTeX."""
