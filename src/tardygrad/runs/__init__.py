"""Runs: the loop, the record, checkpoints and everything that reads them."""
