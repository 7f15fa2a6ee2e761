"""Faithfulness: removals against plain calls of the model, measures against loops, and the comparison as a whole."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import clearhead as ch
from clearhead import errors
from clearhead.faithfulness import metrics
from clearhead.faithfulness.compare import shuffled_model, verdict
from clearhead.faithfulness.removal import Without
from clearhead.faithfulness.scores import scores
from clearhead.methods import registry
from tests.tiny import RECIPES, SMALL, fill, tiny, word_tokenizer, words

CAUSAL = ("gpt2", "gptj", "gpt_neox", "llama", "mistral", "qwen2", "gemma3_text")
BARE = ("gpt2", "gptj", "gpt_neox", "qwen2")
QUICK: dict[str, Any] = {"exact_hta": False, "sanity": False}


def classifier() -> ch.Model:
    config = tf.BertConfig(**SMALL, num_hidden_layers=2, num_labels=3)
    hf = fill(tf.BertForSequenceClassification(config), 1).double().eval()
    return ch.load((hf, word_tokenizer("bert")))


def explained(family: str) -> tuple[ch.Model, Any]:
    model = ch.load(tiny(family, torch.float64))
    return model, None if family in CAUSAL else ch.SimilarTo(words(4, 3))


def plainly(model: Any, ids: list[int], family: str, embeddings: torch.Tensor | None = None) -> float:
    """One text through the model, by hand."""
    given = {"input_ids": torch.tensor([ids])} if embeddings is None else {"inputs_embeds": embeddings[None]}
    with torch.no_grad():
        output = model.hf(**given, attention_mask=torch.ones(1, len(ids), dtype=torch.long))
        if family in CAUSAL:
            return float(output.logits[0, -1].double().softmax(-1)[plainly_best(model, family)])
        other = model.hf(**model.tokenizer(words(4, 3), return_tensors="pt")).last_hidden_state[0].mean(0)
    mine = output.last_hidden_state[0].mean(0)
    return float(mine @ other / (mine.norm() * other.norm()))


def plainly_best(model: Any, family: str) -> int:
    with torch.no_grad():
        return int(model.hf(**model.tokenizer(words(6), return_tensors="pt")).logits[0, -1].argmax())


@pytest.mark.parametrize("removal", ["delete", "mask", "mean"])
@pytest.mark.parametrize("family", RECIPES)
def test_without_tokens_is_a_run_without_them(family: str, removal: Any) -> None:
    model, target = explained(family)
    trace = model.trace(words(6))
    goal = model.goal(trace, target)
    if removal == "delete" and family in BARE:
        with pytest.raises(errors.NotDefined, match="nothing of the text would be left"):
            Without(model, trace, goal, removal)
        return
    without = Without(model, trace, goal, removal)
    ids = list(trace.tokens.ids or ())
    assert [ids[k] for k in range(len(ids)) if k not in without.tokens] == [k for k in ids if k in (2, 3)]
    some = [[], [without.tokens[2]], without.tokens[1:4], [without.tokens[0], without.tokens[-1]], without.tokens]
    for positions, found in zip(some, without(some), strict=True):
        if removal == "delete":
            expected = plainly(model, [x for k, x in enumerate(ids) if k not in positions], family)
        elif removal == "mask":
            mask: Any = model.tokenizer.mask_token_id
            expected = plainly(model, [mask if k in positions else x for k, x in enumerate(ids)], family)
        else:
            table: Any = model.hf.get_input_embeddings()
            with torch.no_grad():
                rows, mean = table(torch.tensor(ids)), table(torch.arange(70)).mean(0)
            expected = plainly(
                model, ids, family, torch.stack([mean if k in positions else r for k, r in enumerate(rows)])
            )
        assert found == pytest.approx(expected, rel=1e-5 if trace.precision == "float32" else 1e-10)
    assert len({round(x, 9) for x in without(some)}) > 3  # the removal acts


def test_a_wrong_run_of_the_whole_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, target = explained("bert")
    trace = model.trace(words(6))
    goal = model.goal(trace, target)
    own = Without._variants  # pyright: ignore[reportPrivateUsage]

    def without_mask(self: Without, removed: Any) -> Any:
        return {k: v.flip(1) if k == "input_ids" else v for k, v in own(self, removed).items()}

    monkeypatch.setattr(Without, "_variants", without_mask)
    with pytest.raises(errors.ProofError, match="does not give the model's own number"):
        Without(model, trace, goal, "delete")


def test_targets() -> None:
    model = classifier()
    trace = model.trace(words(5))
    with torch.no_grad():
        logits = model.hf(**model.tokenizer(words(5), return_tensors="pt")).logits[0]
    for target in (None, 0, 2):
        goal = model.goal(trace, target)
        assert goal.reads == "first"
        index = int(logits.argmax()) if target is None else target
        assert Without(model, trace, goal, "mask").whole == pytest.approx(float(logits.softmax(-1)[index]), rel=1e-12)
    own = model.goal(trace, lambda output: output.logits[:, 1] - output.logits[:, 0])
    assert Without(model, trace, own, "mask").whole == pytest.approx(float(logits[1] - logits[0]), rel=1e-12)
    wrong: list[Any] = [3, -1, True, 1.5]
    for target in wrong:
        with pytest.raises(errors.InputError, match="target"):
            model.goal(trace, target)
    similar = model.goal(trace, ch.SimilarTo(words(5)))  # the model without its head
    assert Without(model, trace, similar, "mask").whole == pytest.approx(1, abs=1e-12)
    bare = ch.load(tiny("bert"))
    with pytest.raises(errors.NotDefined, match="a class or a next token"):
        bare.goal(bare.trace(words(4)), None)
    with pytest.raises(errors.InputError, match="one finite number"):
        Without(model, trace, ch.Goal("wrong", "first", lambda output: output.logits), "mask")


def linear(weights: np.ndarray) -> Any:
    """A model that adds what each token is worth."""

    def without(removed: Any) -> list[float]:
        return [float(sum(w for k, w in enumerate(weights) if k not in set(gone))) for gone in removed]

    return without


def test_measures_equal_the_definition() -> None:
    weights = np.array([0.3, -0.2, 0.9, 0.05, 0.4, 0.0, -0.1])
    without, m = linear(weights), 7
    order = [4, 1, 2, 0, 6, 3, 5]
    found = metrics.measure(order, without)
    counts = [math.ceil(share * m) for share in (0.01, 0.05, 0.1, 0.2, 0.5)]
    assert counts == [1, 1, 1, 2, 4]
    gone = [sum(weights[order[k:]]) for k in range(m + 1)]
    kept = [sum(weights[order[:k]]) for k in range(m + 1)]
    total = sum(weights)
    assert found["comprehensiveness"] == pytest.approx(np.mean([total - gone[k] for k in counts]))
    assert found["sufficiency"] == pytest.approx(np.mean([total - kept[k] for k in counts]))
    assert found["deletion"] == pytest.approx(sum((gone[k] + gone[k + 1]) / 2 for k in range(m)) / m)
    assert found["insertion"] == pytest.approx(sum((kept[k] + kept[k + 1]) / 2 for k in range(m)) / m)
    assert found["score"] == pytest.approx(found["insertion"] - found["deletion"])


def test_the_true_order_scores_best_and_random_ones_nothing() -> None:
    weights = np.array([0.3, -0.2, 0.9, 0.05, 0.4])
    every = {order: metrics.measure(order, linear(weights))["score"] for order in itertools.permutations(range(5))}
    best = tuple(metrics.ranked(weights, range(5)))
    assert every[best] == max(every.values())
    assert min(every, key=lambda order: every[order]) == best[::-1]
    assert np.mean(list(every.values())) == pytest.approx(0, abs=1e-12)


def test_intervals_and_verdicts() -> None:
    random = np.random.default_rng(0)
    assert metrics.interval(np.ones(7), random) == (None, None)
    covered = 0
    for _ in range(200):
        low, high = metrics.interval(random.normal(1, 1, 30), random, 500)
        assert low is not None
        assert high is not None
        covered += low < 1 < high
    assert 175 <= covered <= 199  # 95 % of 200, a little less for so few texts
    assert verdict([(0.1, 0.2), (0.01, 0.3)]) == "yes"
    assert verdict([(0.1, 0.2), (-0.01, 0.3)]) == "open"
    assert verdict([(0.1, 0.2), (-0.2, -0.1)]) == "no"
    assert verdict([(None, None), (0.1, 0.2)]) == "open"
    assert verdict([]) is None


def test_one_score_a_token() -> None:
    trace = ch.load(tiny("bert", torch.float64)).trace(words(5))
    rolled = ch.attention_rollout(trace).values[-1]
    raw = ch.effective_attention(trace, part="raw")
    for reads, expected in (("first", rolled[0]), ("last", rolled[-1]), ("mean", rolled.mean(0))):
        np.testing.assert_allclose(scores(raw, reads), expected, rtol=1e-12)  # type: ignore[arg-type]
        np.testing.assert_allclose(scores(ch.attention_rollout(trace), reads), expected, rtol=1e-12)  # type: ignore[arg-type]
    hta = ch.hidden_token_attribution(trace, seed=1)
    np.testing.assert_array_equal(scores(hta, "last"), hta.values[-1, -1])
    shares = ch.attention_shapley(trace)
    np.testing.assert_array_equal(scores(shares, "mean"), shares.values[-1])
    with pytest.raises(errors.NotDefined, match="a score for each token"):
        scores(ch.mixing_ratio(trace), "first")


@pytest.fixture(scope="module")
def comparison() -> ch.Comparison:
    return ch.compare(classifier(), [words(7, k) for k in range(8)], removal="mask")


def test_the_table(comparison: ch.Comparison) -> None:
    table = comparison.table
    methods = table["method"].tolist()
    assert {"random", "alti", "attention_flow", "value_zeroing", "hidden_token_attribution"} <= set(methods)
    assert not {"mixing_ratio", "identifiable_interval"} & set(methods)
    assert table["score"].tolist() == sorted(table["score"].tolist(), reverse=True)
    for name, score, low, high in zip(
        methods, *(table[c].tolist() for c in ("score", "score_low", "score_high")), strict=True
    ):
        own = comparison.texts["score"][comparison.texts["method"] == name]
        assert len(own) == 8
        assert score == pytest.approx(float(np.mean(own)))
        assert low <= score <= high
    exact = table["exact_hta"].tolist()[methods.index("hidden_token_attribution")]
    assert exact > 0.9  # sampled against exact
    assert set(table["beats_random"].tolist()) <= {"yes", "no", "open", None}
    tau = comparison.agreement
    assert [tau[name][k] for k, name in enumerate(tau["method"].tolist())] == [1.0] * len(tau)
    assert tau["alti"][list(tau["method"]).index("globenc")] == tau["globenc"][list(tau["method"]).index("alti")]
    assert (table["seconds"][[k for k, name in enumerate(methods) if name != "random"]] > 0).all()
    assert table.meta["removal"] == "mask"


def test_it_comes_out_the_same_again(comparison: ch.Comparison) -> None:
    texts = [words(7, k) for k in range(8)]
    again = ch.compare(classifier(), texts, ["alti", "attention_rollout"], removal="mask", **QUICK)
    twice = ch.compare(classifier(), texts, ["alti", "attention_rollout"], removal="mask", **QUICK)
    other = ch.compare(classifier(), texts, ["alti", "attention_rollout"], removal="mask", seed=1, **QUICK)
    assert again.table["score"].tolist() == twice.table["score"].tolist()
    assert again.table["score"].tolist()[:2] != other.table["score"].tolist()[:2] or (
        again.table["over_random"].tolist() != other.table["over_random"].tolist()
    )
    whole = dict(zip(comparison.table["method"].tolist(), comparison.table["score"].tolist(), strict=True))
    for name, score in zip(again.table["method"].tolist(), again.table["score"].tolist(), strict=True):
        assert whole[name] == pytest.approx(score, rel=1e-12)  # whatever else is compared


def test_files_page_and_plot(comparison: ch.Comparison, tmp_path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    assert ch.Table.load(comparison.save(tmp_path / "table.parquet")).equals(comparison.table)
    page = comparison.save(tmp_path / "page.html").read_text("utf-8")
    for name in comparison.table["method"].tolist():
        assert f"<td>{name}</td>" in page
    assert "color-scheme:light dark" in page
    assert not any(word in page for word in ("<script", "http:", "https:", "<link", "@import"))
    with pytest.raises(errors.InputError, match="exists already"):
        comparison.save(tmp_path / "page.html")
    axes = comparison.plot()
    assert [t.get_text() for t in axes.get_yticklabels()] == comparison.table["method"].tolist()
    assert "alti" in comparison._repr_html_()


def test_few_texts_have_no_interval(tmp_path: Path) -> None:
    found = ch.compare(classifier(), [words(7)], ["alti"], removal="mask", **QUICK)
    assert "score_low" not in found.table.columns
    assert found.table["beats_random"].tolist().count("open") == 1
    assert found.save(tmp_path / "page.html").exists()
    found.plot()


def test_a_text_on_which_a_method_fails_costs_no_other_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name as well: what is known of the other texts is kept, the reason is told; of none, it raises."""
    method, made = registry.find("alti"), registry.find("alti").function
    bad = {words(5, 1)}

    def sometimes(trace: ch.Trace, **options: Any) -> ch.Map:
        if trace.tokens.text in bad:
            raise errors.NotDefined("alti: not of this text")
        return made(trace, **options)

    monkeypatch.setitem(registry._METHODS, "alti", replace(method, function=sometimes))
    texts, names = [words(5, 0), words(5, 1), words(5, 2)], ["alti", "vector_norms"]
    table = ch.compare(classifier(), texts, names, removal="mask", **QUICK).table
    counts = dict(zip(table["method"].tolist(), table["texts"].tolist(), strict=True))
    assert counts == {"alti": 2, "vector_norms": 3, "random": 3}
    assert "not of this text" in table.meta["left_out"]["alti"]
    bad.update(texts)
    with pytest.raises(errors.NotDefined, match=r"none of these texts .* from alti; got alti: alti: not of this text"):
        ch.compare(classifier(), texts, names, removal="mask", **QUICK)


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.graph.python", None)
    found = ch.compare(classifier(), [words(5)], removal="mask", **QUICK)
    assert "pip install" in found.table.meta["left_out"]["attention_flow"]
    assert "attention_flow" not in found.table["method"].tolist()
    with pytest.raises(errors.MissingExtra):
        ch.compare(classifier(), [words(5)], ["attention_flow"], removal="mask", **QUICK)


def test_bad_input() -> None:
    model = classifier()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"texts": []}, "texts"),
        ({"texts": "w1 w2"}, "texts"),
        ({"methods": []}, "methods"),
        ({"methods": "alti"}, "methods"),
        ({"methods": ["altti"]}, "did you mean"),
        ({"methods": ["mixing_ratio"]}, "no score for each token"),
        ({"target": [1, 2]}, "targets"),
        ({"removal": "zero"}, "removal"),
    ]
    for change, match in wrong:
        with pytest.raises(errors.InputError, match=match):
            ch.compare(model, **{"texts": [words(5)], "methods": ["alti"], **change})


def test_shuffled_weights_are_a_copy() -> None:
    model = classifier()
    before = {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}
    other = shuffled_model(model, 0)
    assert all((tensor == before[name]).all() for name, tensor in model.hf.state_dict().items())
    for name, tensor in other.hf.state_dict().items():
        if ".layer." in name and tensor.ndim == 2:
            assert not torch.equal(tensor, before[name])
            assert torch.equal(tensor.flatten().sort().values, before[name].flatten().sort().values)
        else:
            assert torch.equal(tensor, before[name])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from clearhead import cli

    monkeypatch.setattr(cli, "load", lambda source: classifier())
    (tmp_path / "texts").write_text("w1 w2 w3 w4\n\nw5 w6 w7\n", "utf-8")
    output = tmp_path / "table.parquet"
    arguments = [
        "compare",
        f"@{tmp_path / 'texts'}",
        "-o",
        str(output),
        "--method",
        "alti",
        "--removal",
        "mask",
        "--quick",
    ]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    assert ch.Table.load(output).meta["texts"] == 2
    wrong = CliRunner().invoke(cli.app, [*arguments, "--overwrite", "--target", "like:w1"])
    assert isinstance(wrong.exception, errors.InputError)
    for spelled in ("1", "class:LABEL_1", "similar:w1 w2"):
        done = CliRunner().invoke(cli.app, [*arguments, "--overwrite", "--target", spelled])
        assert done.exit_code == 0, done.output
    assert ch.Table.load(output).meta["target"] == "similar:w1 w2"
