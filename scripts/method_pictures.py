"""Make the pictures of docs/images/methods: every method that gives a map, of one sentence, on the demo model.

method_pictures.py [NAME ...]   these methods; without names all of them
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

from clearhead.methods.registry import find, methods
from clearhead.models.load import load

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images" / "methods"
SENTENCE = "The cat sat on the mat because it was warm."
TARGET = "similar:A cat lies on a warm mat."
PLACE = {"layer": 2, "head": 5, "query": 8}
"""Layer and head that are drawn, and the query of methods that ask for one."""
OPTIONS: dict[str, dict[str, Any]] = {
    "ttcav": {
        "concept": ["a cat", "The dog barks.", "Two horses ran.", "a small bird", "The fish swims.", "Sheep eat."],
        "rest": ["a table", "The car stops.", "Two houses burned.", "a small key", "The clock ticks.", "Rain falls."],
    }
}


def main() -> None:
    trace = load("demo", dtype="float64").trace(SENTENCE)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or [name for name, one in methods().items() if one.returns == "map"]:
        method = find(name)
        options = OPTIONS.get(name, {}) | {key: PLACE[key] for key in method.required if key in PLACE}
        made = method.function(trace, **options, **({"target": TARGET} if method.explains else {}))
        axes = made.plot(**{dim: PLACE[dim] for dim in ("layer", "head") if dim in made.dims and len(made.dims) > 2})
        axes.get_figure().savefig(IMAGES / f"{name}.png", dpi=100)
        print(name)


if __name__ == "__main__":
    main()
