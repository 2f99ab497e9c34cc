"""Specs: TOML files that become objects."""
