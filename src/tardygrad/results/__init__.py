"""How results are compared and shown: statistics of paired runs, comparisons, tables, colours and styles of figures."""
