"""clearhead reproduce: its data, its measures against slow loops, its verdicts, and runs that are killed."""

import dataclasses
import os
import re
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
from clearhead.studies import attention, data, published
from clearhead.studies import reproduce as study
from clearhead.studies.effects import EFFECTS, judge_effects
from clearhead.studies.mixing import GROUPS, REACH, Mixing, measure_mixing, summary
from clearhead.studies.results import Results
from tests.tiny import tiny, words

HEADER = "\t".join(data.MRPC_COLUMNS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, pairs and texts."""
    folder = tmp_path_factory.mktemp("study")
    model, tokenizer = tiny("bert")
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    pairs = [f"1\t{k}\t{k + 100}\t{words(4 + k % 3, k)}\t{words(5 + k % 4, 50 + k)}" for k in range(20)]
    (folder / "pairs.tsv").write_text("\ufeff" + "\n".join([HEADER, *pairs]) + "\n", "utf-8")
    (folder / "texts.txt").write_text("\n\n".join(words(3 + 5 * k, k) for k in range(11)), "utf-8")
    return folder


def plan(files: Path, **changes: Any) -> study.Plan:
    options: dict[str, Any] = {"hta_examples": 4, "hta_probes": 2, "epochs": 4, "probes": ("naive", "linear")}
    options |= {"model": str(files / "model"), "pairs": str(files / "pairs.tsv"), "texts": str(files / "texts.txt")}
    return study.Plan(**options | changes)


def test_a_study_writes_all_that_it_promises(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "HIDDEN", (8, 16))
    said: list[str] = []
    kinds = ("naive", "linear", "mlp")
    effects = study.reproduce(plan(files, probes=kinds), tmp_path, say=said.append)
    assert len(effects) == len(EFFECTS) == 10
    names = ("1a", "1bc", "2a", "2b", "3a", "3b", "4a", "4b")
    for name in names:
        assert (tmp_path / f"figure_{name}.svg").stat().st_size > 2000
        assert (tmp_path / f"figure_{name}.png").read_bytes().startswith(b"\x89PNG")
    tables = {path.stem: ch.Table.load(path) for path in (tmp_path / "numbers").glob("*.parquet")}
    assert len(tables) == 13 and tables["effects"].equals(effects)
    page = (tmp_path / "index.html").read_text("utf-8")
    body = page[page.index("<main>") :]
    first = re.sub(r"<[^>]+>", "", body[body.index('<p class="lead">') :][:400])
    assert first.startswith("Measured on ")
    assert "direction and shape" in first
    assert page.count("<figure") == 8
    assert not re.findall(r'(?:src|href)="(?!#|figure)[^"]', page), "the page needs nothing else"
    for number in range(10):
        assert effects["criterion"][number].replace("<", "&lt;") in page
    assert any("Estimated time" in line for line in said)


def test_a_killed_study_goes_on_to_the_same_numbers(root: Path, files: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    options = plan(files)
    command = [
        sys.executable, "-m", "clearhead.cli", "reproduce", "-o", str(killed), "--model", options.model,
        "--pairs", str(options.pairs), "--texts", str(options.texts), "--hta-examples", "4", "--hta-probes", "2",
        "--probes", "naive,linear",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    for sign in ("work/attention/00003.npz", "work/probes/linear_cosine_*", "work/mixing/00001.npz"):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        for _ in range(30000):
            if list(killed.glob(sign)) or process.poll() is not None:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert list(killed.glob(sign))
        assert not (killed / "index.html").exists()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert " 1. linear probe, cosine neighbour, last layer: paper 93 % recovered; measured " in done.stdout
    whole = study.reproduce(
        dataclasses.replace(options, epochs=study.Plan.epochs), tmp_path / "whole", say=lambda line: None
    )
    for path in (tmp_path / "whole" / "numbers").glob("*.parquet"):
        ours, theirs = ch.Table.load(path), ch.Table.load(killed / "numbers" / path.name)
        for name in set(ours.columns) - {"seconds"}:
            assert np.array_equal(ours[name], theirs[name]), (path.stem, name)
    assert whole["agrees"].tolist() == ch.Table.load(killed / "numbers" / "effects.parquet")["agrees"].tolist()


def test_raw_and_effective_attention_equal_slow_loops() -> None:
    trace = ch.load(tiny("bert", torch.float64)).trace("w1 w2 w3 w4 w5 w6 w7", "w8 w9")
    found = attention.compare(trace)
    effective = ch.effective_attention(trace).values
    start, separators = [0], [8, 11]
    correlations = []
    for layer in range(2):
        raw = trace.layers[layer].probabilities
        assert raw is not None
        for place, keys in enumerate((start, separators)):
            for name, values in (("raw", raw.numpy()), ("effective", effective[layer])):
                total = sum(values[h, q, k] for h in range(3) for q in range(12) for k in keys) / 36
                assert found[name][layer, place] == pytest.approx(total, abs=1e-12)
        for head in range(3):
            a, b = raw[head].numpy().ravel(), effective[layer, head].ravel()
            a, b = a - a.mean(), b - b.mean()
            correlations.append((a @ b) / np.sqrt((a @ a) * (b @ b)))
    assert found["pearson"] == pytest.approx(np.mean(correlations), abs=1e-12)
    assert found["pearson"] < 0.99  # 12 tokens, values 4 wide: not identifiable
    assert found["present"].tolist() == [True, True, False]


def test_full_stops_and_commas_are_found(demo_model: Any) -> None:
    types = attention.token_types(demo_model.tokens_of("One, two. Three!"))
    assert types.sum(1).tolist() == [1, 1, 2]


def test_texts_are_chosen_evenly_over_their_lengths() -> None:
    model = ch.load(tiny("bert"))
    texts = [words(size, size) for size in (3, 5, *range(18, 60), 200)]
    chosen = attention.choose_texts(model, texts, 8)
    sizes = [len(model.tokens_of(text)) for text in chosen]
    assert len(chosen) == 8 and sizes == sorted(sizes) and (sizes[0], sizes[-1]) == (20, 61)
    assert max(np.diff(sizes)) - min(np.diff(sizes)) <= 1
    assert len(attention.choose_texts(model, texts, 999)) == 42
    with pytest.raises(errors.InputError, match=r"texts; got 1 lines; allowed: one or more of 20 to 128 tokens"):
        attention.choose_texts(model, ["w1"], 5)


def test_mixing_equals_a_slow_loop() -> None:
    random = np.random.default_rng(0)
    values = random.dirichlet(np.ones(14), (2, 14))
    trace = ch.load(tiny("bert")).trace(words(12))
    meta, tokens = {"method": "test"}, {"query": trace.tokens, "key": trace.tokens}
    found = summary(ch.Map(values, ("layer", "query", "key"), tokens=tokens, unit="share", meta=meta))
    for layer in range(2):
        for name, low, high in GROUPS:
            place = [name for name, _, _ in GROUPS].index(name)
            total = sum(values[layer, q, k] for q in range(14) for k in range(14) if low <= abs(q - k) <= high)
            assert found["group"][layer, place] == pytest.approx(total)
        for offset in range(-REACH, REACH + 1):
            total = sum(values[layer, q, q + offset] for q in range(14) if 0 <= q + offset < 14)
            assert found["offset"][layer, offset + REACH] == pytest.approx(total)
        for q in range(14):
            assert found["own"][layer, q] == values[layer, q, q]
            assert found["not_largest"][layer, q] == any(values[layer, q, k] > values[layer, q, q] for k in range(14))


def test_every_text_has_probes_of_its_own(tmp_path: Path) -> None:
    model = ch.load(tiny("bert"))
    mixing = measure_mixing(model, [words(6), words(6)], tmp_path, probes=2, seed=3)
    assert mixing.own.shape == (2, 16) and mixing.text.tolist() == [0] * 8 + [1] * 8
    assert not np.array_equal(mixing.own[:, :8], mixing.own[:, 8:])
    single = ch.hidden_token_attribution(model.trace(words(6)), probes=2, seed=4, debias=True)
    assert mixing.own[:, 8:] == pytest.approx(np.diagonal(single.values, axis1=1, axis2=2), abs=1e-6)
    shares = mixing.by_distance()
    assert list(shares) == [name for name, _, _ in GROUPS[:-1]], "no two tokens are 11 apart here"
    assert all(values.sum() == pytest.approx(1) for values in shares.values())


def fake(**changes: Any) -> Results:
    """Results that agree with the paper in everything that is measured without probes."""
    tokens = np.array([10, 30, 60, 90])
    raw = np.zeros((4, 3, 3))
    raw[:, 1, 1] = 0.5
    attention_part = attention.RawAndEffective(
        tokens, np.array([1.0, 1.0, 0.5, 0.4]), raw, np.full((4, 3, 3), 0.03), np.ones((4, 3), dtype=bool)
    )
    own = np.repeat([[0.3], [0.15], [0.1]], 4, axis=1)
    flags = np.array([[False] * 4, [True, False, False, False], [True, True, False, False]])
    mixing = Mixing(own, own * 0, flags, np.ones((2, 3, 6)), np.ones((2, 3, 21)), np.array([0, 0, 1, 1]))
    options: dict[str, Any] = {
        "model": "m", "layers": 3, "value_width": 32, "attention": attention_part, "recovered": {}, "nearest": None,
        "between": None, "data_size": None, "ablation": None, "mixing": mixing,
    }  # fmt: skip
    return Results(**options | changes)


def verdicts(results: Results) -> list[str]:
    return judge_effects(results)["agrees"].tolist()


def test_verdicts_can_go_both_ways() -> None:
    agreeing = fake()
    not_there = "not measured"
    expected = [not_there, not_there, "yes", "yes", "yes", "yes", *[not_there] * 4]
    assert verdicts(agreeing) == expected
    part = agreeing.attention
    wrong = {
        2: fake(attention=dataclasses.replace(part, pearson=np.array([1.0, 0.99, 0.5, 0.4]))),
        3: fake(attention=dataclasses.replace(part, effective=part.raw * 0.6)),
        4: fake(mixing=dataclasses.replace(agreeing.mixing, own=agreeing.mixing.own[::-1])),
        5: fake(mixing=dataclasses.replace(agreeing.mixing, not_largest=agreeing.mixing.not_largest[::-1])),
    }
    for place, results in wrong.items():
        assert verdicts(results) == [*expected[:place], "no", *expected[place + 1 :]]
    absent = fake(attention=dataclasses.replace(part, present=np.zeros((4, 3), dtype=bool)))
    assert verdicts(absent)[3] == not_there
    always = fake(attention=dataclasses.replace(part, pearson=np.ones(4)))
    assert verdicts(always)[2] == "no", "an r of 1 for long texts too is not the paper's effect"


def rates(values: list[float], **columns: list[float]) -> ch.Table:
    found = {"test": np.array(values), **{name: np.array(v) for name, v in columns.items()}}
    return ch.Table(found, about=dict.fromkeys(found, "as it says"), meta={})


def test_verdicts_on_data_and_size() -> None:
    def on(sizes: list[float], tested: list[float], seconds: list[float]) -> list[str]:
        curve = rates(sizes, share=[0.1, 0.5, 0.9, 1.0])
        return verdicts(fake(data_size=curve, ablation=rates(tested, hidden=[1000.0, 4000.0], seconds=seconds)))[6:]

    assert on([0.74, 0.80, 0.81, 0.82], [0.80, 0.80], [1.0, 3.0]) == ["yes", "yes", "not measured", "yes"]
    assert on([0.80, 0.80, 0.81, 0.81], [0.80, 0.83], [1.0, 3.0]) == ["no", "no", "not measured", "yes"]
    assert on([0.74, 0.80, 0.76, 0.82], [0.80, 0.80], [1.0, 1.2]) == ["yes", "no", "not measured", "no"]


def test_published_curves_have_a_value_for_each_layer() -> None:
    curves = [*published.ATTENTION.values(), *published.RECOVERED.values(), *published.BETWEEN.values()]
    curves += [published.OWN, published.NOT_LARGEST, *published.BY_DISTANCE.values()]
    assert {len(curve) for curve in curves} == {12}
    for curve in published.BY_DISTANCE.values():
        assert sum(curve) == pytest.approx(100, abs=0.2)


def test_its_own_sentences_are_enough() -> None:
    pairs, texts = data.own_pairs(), data.own_texts()
    assert len(pairs.pairs) == 45 and all(first and second for first, second in pairs.pairs)
    assert len(texts) > 100


def test_mrpc_is_read_as_it_is(shared: Path) -> None:
    pairs = data.read_pairs(str(shared / "data/mrpc/dev.tsv"))
    assert len(pairs.pairs) == 408
    assert pairs.places[0].endswith("dev.tsv line 2") and '"' in pairs.pairs[0][1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"line 1: columns; got ''; allowed: Quality, #1 ID"),
        (b"a\tb\n", r"line 1: columns; got 'a\\tb'; allowed: Quality"),
        (f"{HEADER}\n1\t2\t3\tone sentence\n".encode(), r"line 2: columns; got 4; allowed: 5, by tabs"),
        (f"{HEADER}\n1\t2\t3\ta\tb\n1\t2\t3\ta\t \n".encode(), r"line 3: an empty sentence; allowed: two sentences"),
        (f"{HEADER}\n".encode(), r"no pair of sentences; got only the line of columns"),
        (f"{HEADER}\n\xff".encode("latin-1"), r"is not UTF-8; got byte 0xff at position"),
    ],
)
def test_pairs_that_cannot_be_read(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    with pytest.raises(errors.InputError, match=message):
        data.read_pairs(str(path))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="cannot be read; got No such file"):
        data.read_pairs(str(tmp_path / "none.tsv"))
    (tmp_path / "empty.txt").write_text(" \n\n")
    with pytest.raises(errors.InputError, match="no text; got an empty file; allowed: one text a line"):
        data.read_texts(str(tmp_path / "empty.txt"))


def test_the_hub_is_asked_through_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        @staticmethod
        def load_dataset(*names: str, split: str) -> list[dict[str, str]]:
            assert (*names, split) == ("nyu-mll/glue", "mrpc", "validation")
            return [{"sentence1": "a b", "sentence2": "c d"}]

    class Away:
        @staticmethod
        def load_dataset(*names: str, split: str) -> None:
            raise ConnectionError("no route\nto the hub")

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    assert data.read_pairs("glue:mrpc").pairs == (("a b", "c d"),)
    monkeypatch.setitem(sys.modules, "datasets", Away)
    with pytest.raises(errors.InputError, match=r"glue:mrpc cannot be loaded.*got ConnectionError: no route.*tsv file"):
        data.read_pairs("glue:mrpc")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(errors.MissingExtra, match="glue:mrpc needs the library datasets.*pip install datasets"):
        data.read_pairs("glue:mrpc")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": None}, r"needs pairs of sentences \(--pairs\); got none.*--quick"),
        ({"probes": ("deep",)}, r"probes; got deep; allowed: naive, linear, mlp"),
        ({"layers": (0, 3)}, r"layers; got 0, 3; allowed: 1 to 2"),
        ({"max_examples": 0}, r"max_examples; got 0; allowed: 1 or more"),
        ({"max_examples": 4}, r"too few examples for the split"),
    ],
)
def test_plans_that_cannot_be_followed(files: Path, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match=message):
        study.reproduce(plan(files, **changes), tmp_path / "out", say=lambda line: None)


def test_a_long_pair_is_named_by_its_line(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.tsv"
    lines = (files / "pairs.tsv").read_text("utf-8").splitlines()
    path.write_text("\n".join([*lines[:3], f"1\t1\t1\t{words(70)}\tw1", *lines[3:]]), "utf-8")
    with pytest.raises(errors.TextTooLong, match=r"long.tsv line 4: trace: the text is longer than the model's limit"):
        study.reproduce(plan(files, pairs=str(path)), tmp_path / "out", say=lambda line: None)
    said: list[str] = []
    study.reproduce(plan(files, pairs=str(path), long="skip", probes=("naive",)), tmp_path / "out", say=said.append)
    assert said[0].startswith("20 pairs of long.tsv")
    assert "20 of long.tsv, 1 too long" in (tmp_path / "out" / "index.html").read_text("utf-8")


def test_another_study_in_the_same_folder_is_refused(files: Path, tmp_path: Path) -> None:
    quick = plan(files, probes=("naive",))
    study.reproduce(quick, tmp_path, say=lambda line: None)
    with pytest.raises(errors.InputError, match=r"holds results of something else; got another seed.*another folder"):
        study.reproduce(dataclasses.replace(quick, seed=1), tmp_path, say=lambda line: None)
