"""The command `tardygrad`, outside the package because importing that takes a while: Ctrl-C meanwhile just ends it."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Import the command line, and run it."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # no Python, so no traceback
    from tardygrad import cli

    signal.signal(signal.SIGINT, before)
    cli.main()
