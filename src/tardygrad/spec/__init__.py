"""Specs: TOML files that describe runs."""

from tardygrad.spec.sources import shipped as shipped
from tardygrad.spec.spec import load as load
