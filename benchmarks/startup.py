"""How long do commands take that need no training? CPU time (user + system), as a ratio to `python -c pass`.

The smallest of several runs counts: it is the one that was disturbed least.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

TARDYGRAD = str(Path(sys.executable).with_name("tardygrad"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "tardygrad --version": [TARDYGRAD, "--version"],
    "tardygrad --help": [TARDYGRAD, "--help"],
    "tardygrad run --help": [TARDYGRAD, "run", "--help"],
    "tardygrad specs": [TARDYGRAD, "specs"],
    "tardygrad rum (no such verb)": [TARDYGRAD, "rum"],
    "tardygrad run digits --rounds 9 (no such option)": [TARDYGRAD, "run", "digits", "--rounds", "9"],
    "python -c 'import tardygrad'": [sys.executable, "-c", "import tardygrad"],
}
REPEATS = 5


def seconds(command: list[str]) -> float:
    """CPU time of one call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    times = {name: min(seconds(command) for _ in range(REPEATS)) for name, command in COMMANDS.items()}
    for name, time in times.items():
        print(f"{name:<50} {time:5.2f} s of CPU time  {time / times['python -c pass']:6.1f} x python -c pass")
