"""Engines: where jobs run and whose clock counts. One seam, `Pool`."""
