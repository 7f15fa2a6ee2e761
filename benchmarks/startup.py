"""How soon the command line answers, and what `import clearhead` adds to importing torch."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.table import line, median_seconds


def seconds(*arguments: str) -> float:
    """Median time of a fresh interpreter."""
    command = [sys.executable, *arguments]
    return median_seconds(lambda: subprocess.run(command, check=True, capture_output=True))


def main() -> None:
    answers = seconds("-m", "clearhead.cli", "--help")
    line("`clearhead --help`", f"{answers:.2f} s", "", "", "at most 1 s", answers <= 1)
    torch = seconds("-c", "import torch")
    both = seconds("-c", "import torch, clearhead")
    added = both - torch
    line(
        "`import clearhead` beside torch", f"{both:.2f} s", f"{torch:.2f} s", f"+{added:.2f} s", "+0.5 s", added <= 0.5
    )


if __name__ == "__main__":
    main()
