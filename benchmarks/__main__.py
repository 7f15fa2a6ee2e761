"""Run every benchmark, each in a process of its own on one thread, and print one table.

    python -m benchmarks [NAME ...]

A benchmark is a module of this folder that prints its lines by `benchmarks.table` when run. What else it prints goes to
stderr. Exit code 1 if one fails or a promise is not met.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.table import HEADER

HERE = Path(__file__).parent
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def main(names: list[str]) -> int:
    known = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("__init__", "__main__", "table"))
    if unknown := sorted(set(names) - set(known)):
        print(f"No benchmark named {', '.join(unknown)}; there are: {', '.join(known)}.", file=sys.stderr)
        return 2
    wrong: list[str] = []
    print(HEADER, flush=True)
    for name in names or known:
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        with subprocess.Popen(
            command, cwd=HERE.parent, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        ) as run:
            assert run.stdout is not None
            for text in run.stdout:
                print(text, end="", flush=True, file=sys.stdout if text.startswith("|") else sys.stderr)
                if "| NOT MET |" in text:
                    wrong.append(f"{name}: {text.split('|')[1].strip()}: not met")
        if run.returncode:
            wrong.append(f"{name}: failed")
    print("\n".join(wrong) if wrong else "All promises met.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
