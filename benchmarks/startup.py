"""How soon the command line answers, and what `import clearhead` adds to importing torch."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.table import line, median_seconds

REPEATS = 5


def output(*arguments: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True).stdout


def added_by(statement: str) -> float:
    """Median seconds that a statement takes in a fresh interpreter that has imported torch."""
    clock = "from time import perf_counter"
    program = f"import torch\n{clock}\nstart = perf_counter()\n{statement}\nprint(perf_counter() - start)"
    return statistics.median(float(output("-c", program)) for _ in range(REPEATS))


def main() -> None:
    assert "Usage: clearhead" in output("-m", "clearhead.cli", "--help")
    answers = median_seconds(lambda: output("-m", "clearhead.cli", "--help"), REPEATS)
    line("`clearhead --help`", f"{answers:.2f} s", "", "", "at most 1 s", answers <= 1)
    added = added_by("import clearhead")
    line("`import clearhead`, after torch", f"{added:.3f} s", "", "", "at most 0.5 s", added <= 0.5)
    used = added_by("import clearhead; clearhead.load")
    line("the same with `load`, which imports transformers", f"{used:.2f} s", "", "", "", True)


if __name__ == "__main__":
    main()
