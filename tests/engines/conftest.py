"""The command line, as tests/cli calls it."""

from tests.cli.conftest import tardygrad as tardygrad
