"""What a corpus run reads, and how it counts: documents, shards, batches, exact sums."""

from __future__ import annotations

import gzip
import io
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clearhead.corpus import sums as exact_sums
from clearhead.corpus.documents import Document, Source, read
from clearhead.corpus.finish import read_sums
from clearhead.corpus.rows import write_sums
from clearhead.corpus.settings import settings, shards
from clearhead.corpus.summaries import Summary
from clearhead.corpus.sums import Sums, told
from clearhead.corpus.work import batches
from clearhead.errors import InputError

LINES = ["one text", "", "drei Wörter 語", "four"]


def texts(source: Source) -> list[str]:
    return [one.text for one in read(source)]


# ------------------------------------------------------------------------------------------------------------ reading


def test_lines_of_every_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ("\r\n".join(LINES) + "\n").encode("utf-8-sig")
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(data))
    with pa.output_stream(tmp_path / "a.txt.zst", compression="zstd") as file:
        file.write(data)
    for name in ("a.txt", "a.txt.gz", "a.txt.zst"):
        found = list(read(Source(str(tmp_path / name))))
        assert [one.text for one in found] == LINES
        assert [one.place for one in found] == [f"{name}:{k}" for k in (1, 2, 3, 4)]
        assert [one.number for one in found] == [0, 1, 2, 3]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data))))
    assert texts(Source("-")) == LINES


def test_columns_of_every_format(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [1, 2, 3, 4], "text": LINES, "second": ["a", "b", "c, d", 'e "f"']})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "a.tsv", index=False, sep="\t", quoting=3, quotechar="\0")
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.parquet", "b.csv.gz"):
        found = list(read(Source(str(tmp_path / name), "text", "second")))
        assert [(one.text, one.pair) for one in found] == list(zip(LINES, frame["second"], strict=True)), name
        with pytest.raises(InputError, match=r"no column 'txt'; allowed: 'id', 'text', 'second'"):
            texts(Source(str(tmp_path / name), "txt"))
        with pytest.raises(InputError, match="which column"):
            texts(Source(str(tmp_path / name)))


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.txt").write_text("two\nlines")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "no.md").write_text("not read")
    (tmp_path / "empty").mkdir()
    assert [(one.place, one.text) for one in read(Source(str(tmp_path)))] == [
        ("a.txt", "one"),
        ("b/x.txt", "two\nlines"),
    ]
    with pytest.raises(InputError, match=r"no \.txt file"):
        texts(Source(str(tmp_path / "empty")))


def test_a_data_set_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*names: Any, **options: Any) -> list[dict[str, str]]:
        asked.append((names, options))
        return [{"s1": "a", "s2": "b"}, {"s1": "c", "s2": "d"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    found = list(read(Source("hf:nyu-mll/glue,mrpc:validation:s1", pair_column="s2")))
    assert [(one.text, one.pair) for one in found] == [("a", "b"), ("c", "d")]
    assert asked == [(("nyu-mll/glue", "mrpc"), {"split": "validation", "streaming": True})]
    with pytest.raises(InputError, match="no column 's3'; allowed: 's1', 's2'"):
        texts(Source("hf:glue:validation:s3"))
    with pytest.raises(InputError, match="hf:name"):
        texts(Source("hf:glue"))


def test_a_bad_document_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nl\xe9ger\nlast\n")
    found = list(read(Source(str(path))))
    assert [one.problem for one in found] == ["", "not UTF-8: byte 0xe9 at character 1", ""]
    path = tmp_path / "a.jsonl"
    path.write_text('{"t": "good"}\n{"t": \n{"u": "x"}\n{"t": 3}\n[1]\n{"t": "\\ud800"}\n')
    problems = [one.problem for one in read(Source(str(path), "t"))]
    assert problems[0] == ""
    for problem, words in zip(
        problems[1:], ("JSON", "no value", "not a text but int", "a JSON list", "half of a"), strict=True
    ):
        assert words in problem


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.parquet", b"PAR1 and nothing more", "cannot be read"),
        ("a.txt.gz", b"no gzip", "cannot be read"),
        ("a.txt", "wide".encode("utf-16"), "UTF-16"),
    ],
)
def test_an_unreadable_input_is_one_line(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    column = "t" if name.endswith(".parquet") else None
    with pytest.raises(InputError, match=words) as raised:
        texts(Source(str(tmp_path / name), column))
    assert "\n" not in str(raised.value)


def test_no_such_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(Source(str(tmp_path / "nothing.txt")))
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match="a column was named"):
        read(Source(str(tmp_path / "a.txt"), "text"))


# ----------------------------------------------------------------------------------------------- plan: shards, batches


def test_options() -> None:
    found = settings("alti:variant=published, effective_attention,effective_attention:part=raw")
    assert [one.label for one in found.methods] == [
        "alti:variant=published", "effective_attention", "effective_attention:part=raw",
    ]  # fmt: skip
    with pytest.raises(InputError, match="did you mean 'alti'"):
        settings("alty")
    with pytest.raises(InputError, match="each once"):
        settings("alti,alti")
    with pytest.raises(InputError, match="granularity"):
        settings("alti", granularity="all")
    drawn = settings("hidden_token_attribution:probes=4", seed=5).methods[0]
    assert drawn.options_of(7, 5) == {"probes": 4, "seed": 12}


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(1, 9), st.integers(1, 200))
def test_shards_and_batches(lengths: list[int], most: int, tokens: int) -> None:
    """Every document once, in order; batches within the budget, longest first; all a function of the input alone."""
    documents = [Document(k, str(k), "x" * size) for k, size in enumerate(lengths)]
    found = list(shards(iter(documents), most))
    assert [one for shard in found for one in shard.documents] == documents
    assert [shard.number for shard in found] == list(range(len(found)))
    assert all(len(shard.documents) == most for shard in found[:-1])
    size = dict(enumerate(lengths))
    groups = batches(documents, size, tokens)
    assert sorted(one.number for group in groups for one in group) == list(range(len(lengths)))
    longest = [size[group[0].number] for group in groups]
    assert longest == sorted(longest, reverse=True)
    for group in groups:
        assert len(group) == 1 or len(group) * max(size[one.number] for one in group) <= tokens


# ----------------------------------------------------------------------------------------------------------- sums


FLOATS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30)


@given(arrays(np.float64, (5,), elements=FLOATS))
def test_sums_are_exact(values: np.ndarray) -> None:
    numbers = exact_sums.exact(values)
    assert [Fraction(n, 2**exact_sums.SCALE) for n in numbers] == [Fraction(v) for v in values.tolist()]
    assert [exact_sums.parse(exact_sums.spell(n)) for n in numbers] == list(numbers)


def test_the_smallest_number_is_exact() -> None:
    tiny = np.array([5e-324, -5e-324, 0.0])
    assert [Fraction(n, 2**exact_sums.SCALE) for n in exact_sums.exact(tiny)] == [Fraction(v) for v in tiny.tolist()]


@given(st.floats(2.0**-24, 2.0**39) | st.floats(-(2.0**39), -(2.0**-24)))
def test_a_bin_is_within_its_width(value: float) -> None:
    (place,) = exact_sums.bins(np.array([value]))
    assert abs(exact_sums.centre(int(place)) / value - 1) <= 1 / 31.9


def made(seed: int, undefined: float = 0.1) -> list[Summary]:
    draw = np.random.default_rng(seed)
    tokens = int(draw.integers(1, 9))
    values = draw.standard_normal((3, 2, 3, tokens))
    values[draw.random(values.shape) < undefined] = np.nan
    names = ("own", "entropy", "pearson of the head")
    return [Summary(name, values[k], (0, 1), True, True) for k, name in enumerate(names)]


def summed(order: list[int], parts: int, folder: Path | None = None) -> tuple[list[Any], ...]:
    """The sums of these documents, in that order, over so many shards, merged last to first."""
    groups = [Sums() for _ in range(parts)]
    for k, document in enumerate(order):
        groups[k * parts // len(order)].add("m", made(document), document % 3)
    total = Sums()
    for k, group in enumerate(reversed(groups)):
        if folder is None:
            total.merge(group)
            continue
        path = folder / f"{k}"
        path.mkdir()
        write_sums(path, group)
        total.merge(read_sums(path))
    return list(total.rows()), list(total.pair_rows()), list(total.length_rows())


def test_statistics_are_equal_in_any_order_and_sharding(tmp_path: Path) -> None:
    order = list(range(40))
    one = summed(order, 1)
    assert summed(np.random.default_rng(1).permutation(order).tolist(), 7) == one
    assert summed(order, 3, tmp_path) == one
    assert summed(order[1:], 1) != one


def test_statistics_are_those_of_numpy() -> None:
    (rows, pairs, _) = summed(list(range(40)), 4)
    found = [made(k) for k in range(40)]
    for row in rows:
        k = ("own", "entropy", "pearson of the head").index(row["summary"])
        values = np.concatenate([one[k].values[row["layer"], row["head"]] for one in found])
        values = values[np.isfinite(values)]
        said = told(row)
        assert row["values"] == len(values)
        assert said["mean"] == pytest.approx(values.mean(), rel=1e-13, abs=1e-15)
        assert said["deviation"] == pytest.approx(values.std(ddof=1), rel=1e-13)
        for q in (0.05, 0.25, 0.5, 0.75, 0.95):
            exactly = np.quantile(values, q, method="inverted_cdf")
            assert said[f"q{100 * q:02.0f}"] == pytest.approx(exactly, rel=1 / 31.9)
    complete = [all(np.isfinite(one[k].values).any((1, 2)).all() for k in (0, 1)) for one in found]
    assert sum(complete) > 20
    x = np.array([np.nanmean(found[k][0].values, axis=(1, 2)) for k in range(40) if complete[k]])
    y = np.array([np.nanmean(found[k][1].values, axis=(1, 2)) for k in range(40) if complete[k]])
    for layer in range(2):
        (row,) = [r for r in pairs if (r["layer"], r["a"], r["b"]) == (layer, "entropy", "own")]
        assert row["documents"] == len(x)
        assert row["covariance"] == pytest.approx(np.cov(x[:, layer], y[:, layer])[0, 1], rel=1e-10)
