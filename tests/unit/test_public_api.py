"""The public face: its names, how lightly it loads, and what the README promises of it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clearhead

HEAVY = ("torch", "transformers", "matplotlib", "pandas", "pyarrow", "scipy", "xarray", "ray", "numpy")


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after that statement."""
    program = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", clearhead.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(clearhead, name) is not None
    assert name in dir(clearhead)


def test_all_is_what_is_public(root: Path) -> None:
    """The three lists of __init__.py (for users, for type checkers, for loading) name the same things."""
    tree = ast.parse((root / "src/clearhead/__init__.py").read_text("utf-8"))
    typed = {
        alias.asname or alias.name
        for block in tree.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert sorted(clearhead.__all__) == sorted({*clearhead._HOME, "errors"})
    assert typed == set(clearhead._HOME)
    assert set(clearhead.__all__) == set(dir(clearhead))


def test_every_method_is_public() -> None:
    from clearhead.methods.registry import methods

    known = methods()
    assert known
    for name, method in known.items():
        assert getattr(clearhead, name) is method.function


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = clearhead.nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_import_loads_nothing_heavy() -> None:
    assert not loaded_by("import clearhead") & set(HEAVY)


def test_the_list_of_methods_loads_nothing_heavy() -> None:
    assert not loaded_by("from clearhead.methods.registry import methods; methods()") & {*HEAVY} - {"numpy"}


def test_the_command_line_loads_nothing_heavy() -> None:
    assert not loaded_by("import clearhead.cli") & {*HEAVY} - {"numpy"}


def test_the_probe_sees_what_is_loaded() -> None:
    """The control of the three tests above."""
    assert "numpy" in loaded_by("import numpy")


def test_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert clearhead.__version__ == version("clearhead")


def test_version_is_the_cited_one(root: Path) -> None:
    assert f"\nversion: {clearhead.__version__}\n" in (root / "CITATION.cff").read_text("utf-8")
    assert f"\n## [{clearhead.__version__}]" in (root / "CHANGELOG.md").read_text("utf-8")


def test_the_readme_runs(root: Path, demo_model: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The README's Python is ten lines and runs as it stands."""
    import matplotlib as mpl

    mpl.use("agg")
    (block,) = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text("utf-8"), re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        *(
            f"docs/{name}.md"
            for name in ("index", "how-to-read", "methods", "explorer", "faithfulness", "reproduce", "corpus", "sizing")
        ),
    ],
)
def test_links_lead_somewhere(root: Path, page: str) -> None:
    """Links and pictures inside the repository."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (root / page).read_text("utf-8"))
    assert [target for target in targets if not ((root / page).parent / target).exists()] == []


def test_shapes_are_checked_here() -> None:
    """The hook is on: clearhead.linalg refuses states and candidates of different widths by their signature."""
    import torch
    from jaxtyping import TypeCheckError

    from clearhead import linalg

    linalg.nearest_candidates(torch.ones(2, 3, 4), torch.eye(4)[:3], "l2")
    with pytest.raises(TypeCheckError, match="width"):
        linalg.nearest_candidates(torch.ones(2, 3, 4), torch.ones(3, 5), "l2")


def test_no_shape_is_out_of_the_hook(root: Path) -> None:
    """The hook of pyproject.toml covers clearhead.linalg; a shape written elsewhere would be checked nowhere."""
    sources = root / "src/clearhead"
    using = [path for path in sources.rglob("*.py") if "from jaxtyping import" in path.read_text("utf-8")]
    assert using
    assert {path.parent for path in using} == {sources / "linalg"}


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "src/clearhead/linalg").glob("*.py")), ids=str)
def test_shapes_are_real_in_linalg(path: Path) -> None:
    """Postponed annotations, or names imported for type checkers only, would switch the check off silently."""
    source = path.read_text("utf-8")
    if path.name == "__init__.py":
        return
    assert "from __future__ import annotations" not in source
    assert "TYPE_CHECKING" not in source
