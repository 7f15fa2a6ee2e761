"""Corpus runs on a tiny random model: what is stored, what is equal, and that nothing is lost."""

from __future__ import annotations

import errno
import multiprocessing as mp
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from corpus_child import killed_runs, save_tiny, texts

import clearhead as ch
from clearhead import cli
from clearhead.corpus import local, store
from clearhead.corpus.dataset import Corpus
from clearhead.corpus.documents import Source, read
from clearhead.corpus.on_ray import check_listens
from clearhead.corpus.settings import Shard, settings, shards
from clearhead.corpus.status import status
from clearhead.errors import InputError, MissingExtra, NotDefined

COUNT = 60
SMALL: dict[str, Any] = {"methods": "effective_attention,attention_rollout", "shard_documents": 16, "batch_tokens": 200}
KILLS: dict[str, Any] = {"methods": "attention_rollout", "granularity": "statistics"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and texts."""
    folder = tmp_path_factory.mktemp("corpus")
    save_tiny(folder / "model")
    (folder / "texts.txt").write_text("\n".join(texts(COUNT)) + "\n")
    return folder


@pytest.fixture(scope="module")
def model(place: Path) -> Any:
    return ch.load(place / "model")


@pytest.fixture(scope="module")
def whole(place: Path, model: Any) -> Corpus:
    """An undisturbed run."""
    return ch.run_corpus(place / "texts.txt", place / "whole", model=model, **SMALL)


def again(place: Path, model: Any, output: Path, **changes: Any) -> Corpus:
    return ch.run_corpus(place / "texts.txt", output, model=model, **SMALL | changes)


def assert_same(a: Corpus, b: Corpus, kinds: tuple[str, ...] = ("rows", "documents", "tokens")) -> None:
    """Equal to the bit, rows sorted by where they belong."""
    for kind in kinds:
        frames = [one.to_pandas(kind) for one in (a, b)]
        order = [name for name in frames[0] if name not in ("value", "stderr", "proof", "text", "pair", "meta")]
        frames = [
            frame.astype({"method": str, "summary": str} if kind == "rows" else {}).sort_values(
                order, ignore_index=True
            )
            for frame in frames
        ]
        pd.testing.assert_frame_equal(*frames, check_exact=True)
    pd.testing.assert_frame_equal(a.statistics, b.statistics, check_exact=True)
    pd.testing.assert_frame_equal(a.covariance, b.covariance, check_exact=True)
    pd.testing.assert_frame_equal(a.errors, b.errors)
    assert a.manifest["counts"] == b.manifest["counts"]


# ---------------------------------------------------------------------------------------- numbers: equal to one by one


def test_maps_are_those_of_one_text(place: Path, model: Any, tmp_path: Path) -> None:
    """Lengths are mixed in a batch; each Map is that of its text traced alone, to the precision of the pass."""
    corpus = again(place, model, tmp_path / "maps", granularity="maps")
    lines = (place / "texts.txt").read_text().splitlines()
    lengths = set[int]()
    for document in (0, 7, 33, COUNT - 1):
        trace = model.trace(lines[document])
        lengths.add(len(trace.tokens))
        for name, found in corpus.maps(document).items():
            alone = getattr(ch, name)(trace)
            np.testing.assert_allclose(found.values, alone.values, atol=64 * trace.eps, err_msg=name)
            assert (found.dims, found.unit, found.tokens) == (alone.dims, alone.unit, alone.tokens)
            assert found.values.dtype == alone.values.dtype
            assert found.meta["text_sha256"] == alone.meta["text_sha256"]
    assert len(lengths) > 1
    with pytest.raises(InputError, match="no such document"):
        corpus.maps(COUNT)


def test_top_is_the_largest_of_the_maps(place: Path, model: Any, tmp_path: Path) -> None:
    full = again(place, model, tmp_path / "maps", granularity="maps", limit=20).to_pandas()
    top = again(place, model, tmp_path / "top", granularity="top", top=3, limit=20).to_pandas()
    keys = ["document", "method", "layer", "head", "query"]
    full["size"] = -full["value"].abs()
    wanted = full.sort_values("size", kind="stable").groupby(keys, dropna=False, observed=True).head(3)
    wanted = wanted.drop(columns="size").sort_values([*keys, "key"], ignore_index=True)
    pd.testing.assert_frame_equal(top.sort_values([*keys, "key"], ignore_index=True), wanted, check_exact=True)


def test_summaries_by_plain_loops(whole: Corpus, model: Any, place: Path) -> None:
    """Every summary of one text against its definition, written out."""
    text = (place / "texts.txt").read_text().splitlines()[3]
    trace = model.trace(text)
    raw = np.stack([layer.probabilities.double().numpy() for layer in trace.layers])
    kept = ch.effective_attention(trace).values.astype(np.float64)
    n = raw.shape[-1]
    special = [k for k in range(n) if trace.tokens.origin[k] != "text"]
    wanted: dict[tuple[Any, ...], float] = {}
    for layer, head, query in np.ndindex(raw.shape[:3]):
        a, e = raw[layer, head, query], kept[layer, head, query]
        p = [abs(x) / sum(abs(y) for y in e) for x in e]
        at = (layer, head, query)
        wanted["own", *at] = p[query]
        wanted["entropy", *at] = -sum(x * np.log(x) for x in p if x > 0)
        wanted["special", *at] = sum(p[k] for k in special)
        wanted["special, raw", *at] = sum(a[k] for k in special) / sum(a)
        wanted["null-space share", *at] = min(1.0, max(0.0, 1 - sum(e**2) / sum(a**2)))
        wanted["pearson", *at] = float(np.corrcoef(a, e)[0, 1])
        for name, low, high in (("1st", 1, 1), ("4th to 5th", 4, 5), ("11th on", 11, 99)):
            near = [p[k] for k in range(n) if low <= abs(k - query) <= high]
            if near:
                wanted[f"distance {name}", *at] = sum(near)
    rows = whole.to_pandas()
    rows = rows[(rows["document"] == 3) & (rows["method"] == "effective_attention")]
    found = {
        (row.summary, row.layer, row.head, row.query): row.value for row in rows.dropna(subset=["query"]).itertuples()
    }
    assert {key for key in wanted if key[0] == "distance 11th on"} == {k for k in found if k[0] == "distance 11th on"}
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, abs=2e-5), key
    heads = rows[rows["summary"] == "pearson of the head"]
    assert len(heads) == raw.shape[0] * raw.shape[1]
    for layer, head, value in heads[["layer", "head", "value"]].itertuples(index=False):
        r = np.corrcoef(raw[int(layer), int(head)].ravel(), kept[int(layer), int(head)].ravel())[0, 1]
        assert value == pytest.approx(r, abs=2e-5)


def test_statistics_are_those_of_the_rows(whole: Corpus) -> None:
    rows = whole.to_pandas()
    keys = ["method", "summary", "layer", "head"]
    grouped = rows.astype({"method": str, "summary": str}).groupby(keys, dropna=False)["value"]
    found = whole.statistics.set_index(keys).sort_index()
    wanted = grouped.agg(["mean", "std", "count", "min", "max"]).reset_index()
    for row in wanted.itertuples():
        mine = found.loc[(row.method, row.summary, row.layer, row.head)]
        mine = mine.iloc[0] if isinstance(mine, pd.DataFrame) else mine
        assert mine["values"] == row.count
        assert (mine["least"], mine["largest"]) == (row.min, row.max)
        assert mine["mean"] == pytest.approx(row.mean, rel=1e-12, abs=1e-14)


def test_readable_by_other_programs(whole: Corpus) -> None:
    pattern = str(whole.folder / "shards" / "*" / "rows.parquet")
    wanted = whole.to_pandas()
    query = f"select count(*), sum(value) from '{pattern}' where summary = 'entropy'"
    entropy = wanted[wanted["summary"] == "entropy"]["value"]
    assert duckdb.sql(query).fetchall()[0] == (len(entropy), pytest.approx(entropy.sum()))
    assert pl.scan_parquet(pattern).select("value").collect().height == len(wanted)
    files = sorted((whole.folder / "shards").glob("*/rows.parquet"))
    assert len(pd.concat(map(pd.read_parquet, files))) == len(wanted)


# ----------------------------------------------------------------------------------------------------- nothing lost


def test_a_finished_run_does_nothing(whole: Corpus, place: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("clearhead.corpus.run.engine_of", never)
    before = {path: path.stat().st_mtime_ns for path in whole.folder.rglob("*.parquet")}
    again(place, model, whole.folder)
    assert {path: path.stat().st_mtime_ns for path in whole.folder.rglob("*.parquet")} == before
    assert "complete" in status(whole.folder)


@pytest.mark.parametrize("name", ["rows.parquet", "documents.parquet", "shard.json"])
@pytest.mark.parametrize("damage", ["truncated", "zeroed", "gone"])
def test_a_power_cut(whole: Corpus, place: Path, model: Any, tmp_path: Path, name: str, damage: str) -> None:
    """A newest file cut short, or of the right length with nothing in it: that shard is done again, no other."""
    folder = tmp_path / "cut"
    shutil.copytree(whole.folder, folder)
    path = folder / "shards" / "00000001" / name
    size = path.stat().st_size
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: size // 2] if damage == "truncated" else bytes(size))
    kept = folder / "shards" / "00000002" / "rows.parquet"
    before = kept.stat().st_mtime_ns
    assert_same(again(place, model, folder), whole)
    assert kept.stat().st_mtime_ns == before


def test_a_full_disk(whole: Corpus, place: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, finished shards stay, nothing half written; with room again the run goes on."""
    folder, real, writes = tmp_path / "full", os.fsync, [0]

    def fsync(handle: int) -> None:
        writes[0] += 1
        if writes[0] > 25:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InputError, match=r"no space left.*Finished shards are safe"):
        again(place, model, folder)
    monkeypatch.undo()
    stored = list((folder / "shards").iterdir())
    assert 0 < len(stored) < 4
    assert all(store.read_shard(path, contents=True) for path in stored)
    assert not any((folder / "aside").iterdir())
    assert_same(again(place, model, folder), whole)


def test_a_second_run_is_refused(whole: Corpus, place: Path, model: Any) -> None:
    with (
        store.locked(whole.folder),
        pytest.raises(InputError, match=rf"another run is writing.*process {os.getpid()}"),
    ):
        again(place, model, whole.folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"granularity": "top"}, "settings.granularity: there 'summary', asked 'top'"),
        ({"methods": "alti"}, r"settings\.methods"),
        ({"seed": 3}, "settings.seed: there 0, asked 3"),
        ({"limit": 5}, "input.limit: there None, asked 5"),
    ],
)
def test_other_options_are_refused(whole: Corpus, place: Path, model: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        again(place, model, whole.folder, **changes)


def test_another_model_is_refused(whole: Corpus, place: Path, tmp_path: Path) -> None:
    other = ch.load(save_tiny(tmp_path / "model", "distilbert"))
    with pytest.raises(InputError, match=r"model\.revision: there 'sha256"):
        again(place, other, whole.folder)


def test_another_input_is_refused(whole: Corpus, place: Path, model: Any, tmp_path: Path) -> None:
    lines = (place / "texts.txt").read_text().splitlines()
    path = tmp_path / "texts.txt"
    for changed in ([*lines[:20], "w1", *lines[21:]], lines[:40], [*lines, *lines]):
        path.write_text("\n".join(changed) + "\n")
        with pytest.raises(InputError, match="the input has changed"):
            ch.run_corpus(path, whole.folder, model=model, **SMALL)
        shutil.rmtree(whole.folder / "shards" / "00000004", ignore_errors=True)


def test_an_output_that_is_not_ours(place: Path, model: Any, tmp_path: Path) -> None:
    (tmp_path / "letters.doc").write_text("mine")
    with pytest.raises(InputError, match=r"not a corpus directory; got it holds 'letters\.doc'"):
        again(place, model, tmp_path)
    with pytest.raises(InputError, match="is a file"):
        again(place, model, tmp_path / "letters.doc")
    with pytest.raises(InputError, match="not a corpus directory"):
        ch.open_corpus(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.doc"]


# -------------------------------------------------------------------------------------------------- documents that fail


BAD = [b"w1 w2 w3", b"", b"w1 \xff", b"w1 " * 90, b"w4 w5", b"w9 w9 w9 w9 w9 w9"]


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\n".join(BAD) + b"\n")
    return path


def test_bad_documents_are_recorded(bad: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty, not UTF-8, too long, and one on which the model itself fails: each with place and reason."""
    real = type(model)._trace

    def fails(self: Any, batch: Any, *rest: Any) -> Any:
        if any(one.tokens.text.startswith("w9") for one in batch):
            raise RuntimeError("index out of range in self")
        return real(self, batch, *rest)

    monkeypatch.setattr(type(model), "_trace", fails)
    corpus = ch.run_corpus(bad, tmp_path / "out", model=model, methods="attention_rollout")
    errors = pd.read_parquet(corpus.folder / "errors.parquet")
    assert errors["method"].isna().all()
    assert errors.drop(columns="method").to_dict() == corpus.errors.drop(columns="method").to_dict()
    assert errors["place"].tolist() == [f"bad.txt:{k}" for k in (2, 3, 4, 6)]
    for reason, words in zip(
        errors["reason"], ("nothing to read", "byte 0xff", "longer than", "index out"), strict=True
    ):
        assert words in reason
    assert errors["kind"].tolist() == ["InputError", "Unreadable", "TextTooLong", "RuntimeError"]
    assert sorted(set(corpus.to_pandas()["document"])) == [0, 4]
    assert corpus.manifest["counts"]["failed"] == 4


def test_max_errors(bad: Path, model: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"too many documents failed; got 3, such as bad\.txt:2: .*--max-errors 2"):
        ch.run_corpus(bad, tmp_path / "out", model=model, methods="attention_rollout", max_errors=2)
    corpus = ch.run_corpus(bad, tmp_path / "out", model=model, methods="attention_rollout", max_errors=3)
    assert corpus.manifest["complete"]


def test_a_method_that_fails_costs_no_other(place: Path, model: Any, tmp_path: Path) -> None:
    methods = "attention_rollout,identifiable_interval:layer=0:head=0:query=20"
    corpus = again(place, model, tmp_path / "out", methods=methods, limit=20)
    errors, rows = corpus.errors, corpus.to_pandas()
    assert 0 < len(errors) < 20
    assert set(errors["method"]) == {"identifiable_interval:head=0:layer=0:query=20"}
    assert set(rows[rows["method"] == "attention_rollout"]["document"]) == set(range(20))
    assert set(rows[rows["method"] != "attention_rollout"]["summary"]) == {"bound low", "bound high"}


def test_out_of_memory_halves_the_batch(
    place: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Corpus
) -> None:
    real = type(model).trace_many

    def short(self: Any, batch: Any, **options: Any) -> Any:
        if len(batch) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return real(self, batch, **options)

    monkeypatch.setattr(type(model), "trace_many", short)
    corpus = again(place, model, tmp_path / "out")
    assert corpus.manifest["counts"]["halved"] > 0
    assert "memory     was short" in status(corpus.folder)
    assert corpus.errors.empty
    order = ["document", "method", "layer", "head", "query", "summary"]
    mine, its = (one.to_pandas().sort_values(order, ignore_index=True) for one in (corpus, whole))
    np.testing.assert_allclose(mine["value"], its["value"], atol=1e-4)


def test_bad_options(place: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for changes, words in (
        ({"engine": "spark"}, "allowed: local, ray"),
        ({"workers": 2}, "a model in memory serves one worker"),
        ({"workers": 0}, "1 or more"),
        ({"methods": "altj"}, "did you mean 'alti'"),
        ({"dtype": "float64"}, "dtype of a model in memory"),
    ):
        with pytest.raises(InputError, match=words):
            again(place, model, tmp_path / "out", **changes)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install clearhead"):
        again(place, model, tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------------------------- merge, report, commands


def test_merged_parts_are_the_whole(place: Path, model: Any, tmp_path: Path, whole: Corpus) -> None:
    """Statistics to the bit; rows but for the numbers of the shards' documents, which go on."""
    lines = (place / "texts.txt").read_text().splitlines()
    cut = 2 * SMALL["shard_documents"]
    for name, part in (("a", lines[:cut]), ("b", lines[cut:])):
        (tmp_path / "texts.txt").write_text("\n".join(part) + "\n")
        ch.run_corpus(tmp_path / "texts.txt", tmp_path / name, model=model, **SMALL)
    from clearhead.corpus.merge import merge

    merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "ab")
    assert_same(merged, whole, kinds=("rows", "tokens"))
    with pytest.raises(InputError, match="exists already"):
        merge([tmp_path / "a"], tmp_path / "ab")
    other = again(place, model, tmp_path / "other", top=3, granularity="top", limit=16)
    with pytest.raises(InputError, match="settings.granularity"):
        merge([tmp_path / "a", other.folder], tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_no_maps_without_all_numbers(whole: Corpus) -> None:
    with pytest.raises(NotDefined, match='granularity "maps"'):
        whole.maps(0)


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["clearhead", "corpus", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def test_the_commands(
    place: Path, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code and the last line tell the truth."""
    common = ("--model", place / "model", "--methods", "effective_attention", "-o")
    good = tmp_path / "good.txt"
    good.write_text("w1 w2\nw3\n")
    assert run_command(monkeypatch, "run", good, *common, tmp_path / "good") == 0
    assert "Done: " in capsys.readouterr().out.splitlines()[-1]
    assert run_command(monkeypatch, "run", bad, *common, tmp_path / "bad") == 3
    last = capsys.readouterr()
    assert "Done, with errors: " in last.out.splitlines()[-1]
    assert "3 of 6 documents" in last.out
    assert "3 failed" in last.out
    assert "documents" in last.err  # plain lines where there is no terminal
    assert run_command(monkeypatch, "run", bad, *common, tmp_path / "max", "--max-errors", 1) == 2
    assert len(capsys.readouterr().err.strip().splitlines()[-1:]) == 1
    assert run_command(monkeypatch, "status", tmp_path / "bad") == 0
    assert "failed     3" in capsys.readouterr().out
    assert run_command(monkeypatch, "merge", tmp_path / "good", tmp_path / "bad", "-o", tmp_path / "both") == 0
    assert ch.open_corpus(tmp_path / "both").manifest["counts"]["documents"] == 8
    assert run_command(monkeypatch, "report", tmp_path / "both", "-o", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page
    assert "http-equiv" in page
    assert run_command(monkeypatch, "status", tmp_path) == 2
    assert "not a corpus directory" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- kills


def kill_and_compare(place: Path, output: Path, count: int, kills: int, **options: Any) -> list[int]:
    """Kill a run so many times, then hold the finished data set against an undisturbed one."""
    path = output / "texts.txt"
    output.mkdir()
    path.write_text("\n".join(texts(count, seed=5)) + "\n")
    size = options.pop("shard_documents", 20)
    common = {"source": str(path), "model": str(place / "model"), **KILLS, "shard_documents": size}
    undisturbed = ch.run_corpus(**common, output=output / "undisturbed")
    stored = killed_runs(kills, count // size // kills, 11, {**common, **options, "output": str(output / "killed")})
    assert_same(ch.open_corpus(output / "killed"), undisturbed, kinds=("rows", "documents"))
    return stored


def test_killed_runs_end_as_undisturbed(place: Path, tmp_path: Path) -> None:
    stored = kill_and_compare(place, tmp_path / "kills", 200, 5, shard_documents=4)
    assert len(stored) >= 3
    assert stored == sorted(stored)
    assert stored[-1] > 0


def test_ray_stores_the_same(place: Path, tmp_path: Path, whole: Corpus) -> None:
    """The same rows to the bit from actors, and from worker processes; the cluster is ended."""
    import ray

    options: dict[str, Any] = {**SMALL, "model": place / "model", "engine": "ray", "workers": 2}
    corpus = ch.run_corpus(place / "texts.txt", tmp_path / "ray", **options)
    assert not ray.is_initialized()
    assert_same(corpus, whole)


def test_an_address_where_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening: it refuses
        port = taken.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(InputError, match=f"nobody listens at .*{port}.*; allowed: host:port"):
                check_listens(address)
        taken.listen()
        check_listens(f"127.0.0.1:{port}")
    for address in (None, "auto", "local"):  # Ray itself finds these
        check_listens(address)
    with pytest.raises(InputError, match="nobody listens at 127.0.0.1:99999"):
        check_listens("127.0.0.1:99999")


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:6397", "auto"])
def test_a_cluster_that_is_there_already(place: Path, tmp_path: Path, whole: Corpus, address: str) -> None:
    """Found by its address; used, and left running. By the command, in a process that has not met Ray before."""
    ray, open_to_all = str(Path(sys.executable).with_name("ray")), {**os.environ, "RAY_AUTH_MODE": "disabled"}
    start = [ray, "start", "--head", "--port=6397", "--num-cpus=2", "--include-dashboard=false"]
    run = [
        Path(sys.executable).with_name("clearhead"),
        "corpus",
        "run",
        place / "texts.txt",
        "--model",
        place / "model",
    ]
    run += ["--methods", SMALL["methods"], "--shard-documents", SMALL["shard_documents"]]
    run += ["--batch-tokens", SMALL["batch_tokens"], "--granularity", "summary"]
    run += ["-o", tmp_path / "ray", "--engine", "ray", "--workers", 2, "--ray-address", address]
    subprocess.run([*start, f"--object-store-memory={200 * 2**20}"], check=True, capture_output=True, env=open_to_all)
    try:
        subprocess.run([str(word) for word in run], check=True, capture_output=True, env=open_to_all)
        assert_same(ch.open_corpus(tmp_path / "ray"), whole)
        check_listens("127.0.0.1:6397")
    finally:
        subprocess.run([ray, "stop"], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "workers"), [("local", 1), ("local", 2), ("ray", 2)])
def test_thirty_kills(place: Path, tmp_path: Path, engine: str, workers: int) -> None:
    stored = kill_and_compare(place, tmp_path / "kills", 2000, 30, engine=engine, workers=workers)
    print(f"{engine}, {workers}: shards stored after each kill: {stored}")
    assert len(stored) >= 20


def test_a_lost_worker_is_replaced(place: Path, tmp_path: Path, whole: Corpus) -> None:
    """A worker killed in the middle of a run: what it had under way is done again by another, and nothing else."""
    output = tmp_path / "out"
    store.prepare(output)
    job = local.Job(str(place / "model"), None, settings(**SMALL), output)
    others = set(mp.active_children())
    found = local.in_processes(shards(read(Source(str(place / "texts.txt"))), SMALL["shard_documents"]), job, 2)
    done = [next(found)["shard"]]
    children = sorted(set(mp.active_children()) - others, key=lambda one: one.name)
    assert len(children) == 2
    children[0].kill()
    done += [one["shard"] for one in found]
    assert sorted(done) == [0, 1, 2, 3]
    again(place, ch.load(place / "model"), output)
    assert_same(Corpus(output), whole)
    with pytest.raises(InputError, match="a worker process was lost 3 times with shard 4"):
        local.count_lost([Shard(4, tuple(read(Source(str(place / "texts.txt")))))], {4: 2})
