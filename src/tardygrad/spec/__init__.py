"""Specs: TOML files that become objects."""

from tardygrad.spec.spec import load as load
from tardygrad.spec.spec import shipped as shipped
