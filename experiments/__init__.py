"""The paper, reproduced: each module re-makes one of its results, and sets it beside the published numbers.

These are scripts, `python -m experiments.NAME`, and no part of the package.
"""
