"""Probes on disk: killed runs, full disks, foreign folders, and texts that cannot be used."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead import errors
from clearhead.probes import Probe, Recipe, identify, write_features
from clearhead.probes import features as features_module
from clearhead.probes import training as training_module
from tests.contract.test_probes import QUICK, TEXTS, equal
from tests.tiny import tiny


class Killed(BaseException):
    """Stands for a kill in the middle of the work."""


@pytest.fixture(scope="module")
def model() -> Any:
    return ch.load(tiny("bert"))


def killing(after: int) -> Any:
    """A progress callback that ends the work at its n-th call."""
    calls: list[float] = []

    def progress(done: float, total: float) -> None:
        calls.append(done)
        if len(calls) == after:
            raise Killed

    return progress


def test_features_go_on_where_they_were(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features_module, "CHUNK", 8)
    whole = write_features(model, TEXTS, tmp_path / "whole")
    with pytest.raises(Killed):
        write_features(model, TEXTS, tmp_path / "killed", progress=killing(3))
    traced: list[int] = []

    class Counting:
        origin = model.origin
        tokens_of = staticmethod(model.tokens_of)

        @staticmethod
        def trace_many(texts: Any) -> Any:
            traced.append(len(texts))
            return model.trace_many(texts)

    with (tmp_path / "killed" / "depth_1.npy").open("r+b") as file:  # rows that were half written when it was killed
        file.seek(0, os.SEEK_END)
        file.write(b"rubbish")
    again = write_features(Counting(), TEXTS, tmp_path / "killed")
    assert traced == [8, 8]
    for depth in range(whole.depths):
        assert torch.equal(whole.states(depth), again.states(depth))
    assert torch.equal(whole.targets, again.targets)
    assert write_features(Counting(), TEXTS, tmp_path / "killed").tokens == whole.tokens and traced == [8, 8]
    with pytest.raises(errors.InputError, match=r"no such depth; got 3; allowed: 0 to 2"):
        whole.states(3)


@pytest.mark.parametrize("after", [1, 5, 9, 14, 20])
def test_training_goes_on_where_it_was(model: Any, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_module, "CHECKPOINT_SECONDS", 0.0)
    features = write_features(model, TEXTS, tmp_path / "features")
    recipe = Recipe("mlp", hidden=16, dropout=0.1, epochs=9, patience=9)
    whole = identify(features, recipe, folder=tmp_path / "whole")
    with pytest.raises(Killed):
        identify(features, recipe, folder=tmp_path / "killed", progress=killing(after))
    assert equal(identify(features, recipe, folder=tmp_path / "killed"), whole)
    assert not list((tmp_path / "killed").glob("learning_*")), "the checkpoint is removed at the end"


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
import clearhead as ch
from clearhead.probes import features, training
features.CHUNK, training.CHECKPOINT_SECONDS = 4, 0.0
from tests.contract.test_probes import TEXTS
from tests.tiny import tiny
ch.token_identifiability(ch.load(tiny("bert")), TEXTS, probe="linear", epochs=60, patience=60, folder=sys.argv[1])
"""


def test_a_killed_process_goes_on_to_the_same_numbers(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features_module, "CHUNK", 4)  # as in the script: a batch may change the last bit of a state
    options: dict[str, Any] = {"probe": "linear", "epochs": 60, "patience": 60}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    folder = tmp_path / "killed"
    for sign in ("features/features.json", "probes/learning_*"):  # while tracing, then while learning
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], env=environment)
        for _ in range(3000):
            if list(folder.glob(sign)) or process.poll() is not None:
                break
            time.sleep(0.02)
        assert process.poll() is None, "the run ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
    again = ch.token_identifiability(ch.load(tiny("bert")), TEXTS, **options, folder=folder)
    whole = ch.token_identifiability(ch.load(tiny("bert")), TEXTS, **options, folder=tmp_path / "whole")
    assert equal(again, whole)


def test_a_full_disk_is_an_error_and_what_is_there_stays(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features_module, "CHUNK", 8)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, hard))
        with pytest.raises(errors.InputError, match=r"depth_0.npy' cannot be written; got .*needs 0 MB for each depth"):
            write_features(model, TEXTS, tmp_path / "full")
        assert list((tmp_path / "full").glob("features.json"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    full, whole = (write_features(model, TEXTS, tmp_path / name) for name in ("full", "whole"))
    assert torch.equal(full.states(2), whole.states(2))


def test_a_folder_of_something_else_is_refused(model: Any, tmp_path: Path) -> None:
    write_features(model, TEXTS, tmp_path / "here")
    for texts, options, what in (
        (TEXTS[:-1], {}, "another texts"),
        (TEXTS, {"embedding": "sum"}, "another embedding"),
    ):
        with pytest.raises(errors.InputError, match=rf"holds results of something else; got {what}.*another folder"):
            write_features(model, texts, tmp_path / "here", **options)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.InputError, match="cannot be made; got File exists"):
        write_features(model, TEXTS, tmp_path / "file")


def test_probes_come_back_equal(model: Any, tmp_path: Path) -> None:
    features = write_features(model, TEXTS, tmp_path / "features")
    for kind in ("naive", "linear", "mlp"):
        found = identify(features, Recipe(kind, hidden=8, **QUICK), folder=tmp_path / "probes")  # type: ignore[arg-type]
        probe = found.probe(2)
        again = Probe.load(probe.save(tmp_path / f"{kind}.safetensors"))
        assert torch.equal(probe(features.states(2)), again(features.states(2)))
        assert len(list((tmp_path / "probes").glob(f"{kind}_cosine_*.safetensors"))) == 3
        with pytest.raises(errors.InputError, match="exists already"):
            probe.save(tmp_path / f"{kind}.safetensors")
        with pytest.raises(errors.InputError, match=r"no probe of this depth; got 9; allowed: \(0, 1, 2\)"):
            found.probe(9)
        with pytest.raises(errors.InputError, match="no such fold; got 1; allowed: 0 to 0"):
            found.probe(1, fold=1)
    (tmp_path / "foreign.safetensors").write_bytes(b"nothing of ours")
    with pytest.raises(errors.InputError, match="is no probe of clearhead"):
        Probe.load(tmp_path / "foreign.safetensors")


def test_the_table_has_a_row_a_depth(model: Any, tmp_path: Path) -> None:
    table = ch.token_identifiability(model, TEXTS, folder=tmp_path).to_table()
    assert table["depth"].tolist() == [0, 1, 2]
    assert table.meta["kind"] == "naive" and table.meta["model"] == model.name
    table.save(tmp_path / "rates.parquet")
    assert ch.Table.load(tmp_path / "rates.parquet").equals(table)


def test_texts_that_cannot_be_used(model: Any, tmp_path: Path) -> None:
    bare = ch.load(tiny("gpt2"))
    run = ch.token_identifiability
    with pytest.raises(errors.InputError, match=r"text 1: a text of one token has no nearest neighbour.*got 'w3'"):
        run(bare, ["w1 w2", "w3", *TEXTS])
    with pytest.raises(errors.InputError, match="text 2: trace: text has nothing to read; got an empty text"):
        run(model, ["w1", "w2", "", *TEXTS])
    with pytest.raises(errors.InputError, match="probes: texts; got one string; allowed: a list"):
        run(model, "w1 w2")
    with pytest.raises(errors.InputError, match="probes: texts; got none"):
        run(model, [])
    alike = ch.load(tiny("qwen2"))
    with pytest.raises(errors.NotDefined, match=r"example 4: .*all tokens of the text have the same one; got 3 tokens"):
        run(alike, [*TEXTS[:4], "w5 w5 w5", *TEXTS[4:]])


def test_long_texts_are_named_or_counted(model: Any, tmp_path: Path) -> None:
    long = " ".join(["w1"] * 70)
    texts = [*TEXTS[:3], long, *TEXTS[3:], long]
    with pytest.raises(errors.TextTooLong, match=r"text 3: trace: the text is longer.*got 72 tokens; allowed: at most"):
        ch.token_identifiability(model, texts)
    skipped = ch.token_identifiability(model, texts, long="skip", folder=tmp_path / "a")
    assert skipped.skipped == (3, len(texts) - 1) and skipped.examples == len(TEXTS)
    without = ch.token_identifiability(model, TEXTS, folder=tmp_path / "b")
    assert np.array_equal(skipped.test, without.test)
    with pytest.raises(errors.InputError, match="every text is longer than the model's limit; got 1 texts"):
        ch.token_identifiability(model, [long], long="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probe": "deep"}, r"probes: probe; got 'deep'; allowed: 'naive', 'linear', 'mlp'"),
        ({"distance": "l1"}, r"probes: distance; got 'l1'; allowed: 'cosine', 'l2'"),
        ({"long": "cut"}, r"probes: long; got 'cut'; allowed: 'error', 'skip'"),
        ({"depths": [0, 3]}, r"depths; got 3; allowed: 0 to 2"),
        ({"depths": []}, r"depths; got none; allowed: 0 to 2"),
        ({"split": (0.5, 0.5, 0.5)}, r"split; got \(0.5, 0.5, 0.5\); allowed: three positive shares that sum to 1"),
        ({"split": (0.98, 0.01, 0.01)}, r"too few examples for the split .*; got 40; allowed: at least one"),
        ({"folds": 2}, r"folds; got 2; allowed: a whole number from 3"),
        ({"folds": 50}, r"too few examples for 50 folds; got 40"),
        ({"hidden": 0}, r"probes: hidden; got 0; allowed: a whole number from 1"),
        ({"dropout": 1.0}, r"probes: dropout; got 1.0; allowed: 0 <= dropout < 1"),
        ({"seed": -1}, r"probes: seed; got -1; allowed: a whole number from 0"),
    ],
)
def test_options_out_of_range(model: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match=message):
        ch.token_identifiability(model, TEXTS, **options, folder=tmp_path)
