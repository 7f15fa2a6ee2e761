"""What every test may ask for: the demo model, the shared reference data, the real models, a browser."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
REAL_MODELS = Path.home() / ".cache" / "clearhead-models"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

settings.register_profile(
    "clearhead",
    deadline=None,
    max_examples=30,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),  # the same examples in every CI run; new ones on every other
)
settings.load_profile("clearhead")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference arrays, cases and texts beside the repository."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no folder ../shared: the comparison with its reference data is left out")
    return folder


@pytest.fixture(scope="session")
def demo_model() -> Any:
    """The demo model, loaded once. Its package comes with the environment, so its absence is a failure."""
    from clearhead.models.load import load

    return load("demo")


@pytest.fixture(scope="session")
def real_models() -> Path:
    """The folder of the real models that `make models` brings."""
    if not REAL_MODELS.is_dir():
        pytest.skip(f"no real models in {REAL_MODELS}: `make models` says how to bring them")
    return REAL_MODELS


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a chromium. With CI set its absence is a failure, elsewhere a skip."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium found, and CI is set: scripts/install-chromium.sh installs it")
        pytest.skip("no chromium found: the browser tests are left out (scripts/install-chromium.sh installs it)")
    return path
