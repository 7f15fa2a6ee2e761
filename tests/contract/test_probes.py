"""token_identifiability with probes: oracles, controls, determinism, and what random models do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import clearhead as ch
from clearhead import errors
from clearhead.probes import (
    Features,
    Recipe,
    cross_layer,
    data_size_curve,
    identify,
    neighbour_recovery,
    size_ablation,
    write_features,
)
from clearhead.probes.rates import fold_examples, interval, pair, split_examples
from tests.contract.test_token_identifiability import slowly
from tests.tiny import tiny, word_tokenizer, words

TEXTS = [words(5 + k % 6, seed=k) for k in range(40)]
QUICK: dict[str, Any] = {"epochs": 6, "patience": 3}


@pytest.fixture(scope="module")
def model() -> Any:
    return ch.load(tiny("bert"))


@pytest.fixture(scope="module")
def features(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Features:
    return write_features(model, TEXTS, tmp_path_factory.mktemp("features"))


def equal(a: ch.TokenIdentifiability, b: ch.TokenIdentifiability) -> bool:
    """The same rates and probes, to the bit."""
    same = all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("train", "validation", "test", "interval"))
    pairs = zip(sum(a.probes, ()), sum(b.probes, ()), strict=True)
    return same and all(torch.equal(p.weights[n], q.weights[n]) for p, q in pairs for n in p.weights)


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma3_text"])
def test_naive_rates_equal_a_slow_loop_over_the_test_examples(family: str, distance: Any, tmp_path: Path) -> None:
    model = ch.load(tiny(family))
    found = ch.token_identifiability(model, TEXTS, distance=distance, folder=tmp_path)
    test = found.splits[0][2]
    rates, strict, sizes = [], [], []
    for example in test:
        hidden = model.trace(TEXTS[example]).hidden.double().numpy()
        one, alone = slowly(hidden, hidden[0], distance)
        rates.append(one)
        strict.append(alone)
        sizes.append(hidden.shape[1])
    weights = np.array(sizes)[:, None] / sum(sizes)
    assert found.test == pytest.approx((np.array(rates) * weights).sum(0), abs=1e-12)
    assert found.strict == pytest.approx((np.array(strict) * weights).sum(0), abs=1e-12)
    assert found.test[0] == found.train[0] == found.validation[0] == 1  # a token vector is nearest to itself
    assert (found.interval[:, 0] <= found.test).all() and (found.test <= found.interval[:, 1]).all()
    assert found.examples == len(TEXTS) and found.tokens == sum(len(model.tokens_of(text)) for text in TEXTS)


def test_the_linear_probe_starts_from_ridge_regression(features: Features, tmp_path: Path) -> None:
    start = identify(features, Recipe(epochs=1, rate=1e-30), folder=tmp_path)
    training = features.rows(start.splits[0][0])
    for depth in start.depths:
        x, y = features.states(depth)[training].double().numpy(), features.targets[training].double().numpy()
        centred = x - x.mean(0)
        covariance = centred.T @ centred / len(x)
        damped = covariance + 1e-3 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        weight = np.linalg.inv(damped) @ (centred.T @ (y - y.mean(0)) / len(x))
        expected = (x - x.mean(0)) @ weight + y.mean(0)
        predicted = start.probe(depth)(features.states(depth)[training]).numpy()
        assert np.abs(predicted - expected).max() < 1e-4 * np.abs(expected).max()  # float32 probes, condition 1e3


def test_training_lowers_its_loss_and_keeps_the_best_validation_epoch(features: Features, tmp_path: Path) -> None:
    recipe = Recipe(epochs=20, patience=20)
    trained = identify(features, recipe, folder=tmp_path)
    start = identify(features, replace(recipe, epochs=1, rate=1e-30), folder=tmp_path)
    naive = identify(features, replace(recipe, kind="naive"), folder=tmp_path)
    assert (trained.validation >= start.validation).all()
    assert trained.validation[1:].mean() > naive.validation[1:].mean() + 0.1

    def far(found: ch.TokenIdentifiability) -> float:
        rows = features.rows(found.splits[0][0])
        predicted = found.probe(2)(features.states(2)[rows])
        return float(1 - torch.nn.functional.cosine_similarity(predicted, features.targets[rows]).mean())

    assert trained.epochs[2] > 0
    assert far(trained) < far(start)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(kind: Any, features: Features, tmp_path: Path) -> None:
    recipe = Recipe(kind, hidden=16, dropout=0.2 if kind == "mlp" else 0.0, **QUICK)
    first, again = (identify(features, recipe, folder=tmp_path / name) for name in "ab")
    other = identify(features, replace(recipe, seed=1), folder=tmp_path)
    assert equal(first, again)
    assert not equal(first, other)
    assert first.splits != other.splits


@pytest.mark.parametrize("kind", ["naive", "linear", "mlp"])
def test_shuffled_inputs_are_recovered_by_chance_alone(kind: Any, features: Features, tmp_path: Path) -> None:
    recipe = Recipe(kind, hidden=64, batch=32, rate=1e-2, epochs=15, patience=15)
    found = identify(features, recipe, folds=5, shuffled=True, folder=tmp_path)
    chance = features.examples / features.tokens  # the mean over tokens of 1 / n
    spread = (chance * (1 - chance) / features.tokens) ** 0.5
    assert abs(found.test - chance).max() < 5 * spread
    real = identify(features, recipe, folds=5, folder=tmp_path)
    assert real.test.min() > chance + 10 * spread  # the control can fail: what is there to learn is learnt


def test_a_randomly_initialised_model_hardly_mixes(tmp_path: Path) -> None:
    """With weights of standard deviation .02 a block adds little to its input: identity survives every depth."""
    torch.manual_seed(0)
    config = tf.BertConfig(vocab_size=70, hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
                           intermediate_size=64, max_position_embeddings=64)  # fmt: skip
    model = ch.load((tf.BertModel(config).eval(), word_tokenizer("bert")))
    for probe in ("naive", "linear"):
        found = ch.token_identifiability(model, TEXTS, probe=probe, folder=tmp_path)  # type: ignore[arg-type]
        assert found.test.tolist() == [1.0] * 5
    with torch.no_grad():
        for layer in model.hf.encoder.layer:  # the same with attention that overwhelms the residual stream
            layer.attention.output.dense.weight.mul_(3000)
    mixed = ch.token_identifiability(model, TEXTS, folder=tmp_path / "mixed")
    assert mixed.test[-1] < 0.5


def test_splits_are_by_example_and_folds_test_each_once() -> None:
    parts = split_examples(40, (0.7, 0.15, 0.15), 0)
    assert [len(part) for part in parts] == [28, 6, 6]
    assert sorted(sum(parts, ())) == list(range(40))
    folds = fold_examples(41, 10, 3)
    assert sorted(example for _, _, test in folds for example in test) == list(range(41))
    for training, validation, test in folds:
        assert sorted(training + validation + test) == list(range(41))


def test_folds_pool_every_token(features: Features, tmp_path: Path) -> None:
    found = identify(features, Recipe("naive"), folds=4, folder=tmp_path)
    split = identify(features, Recipe("naive"), folder=tmp_path)
    assert sum(found.class_tokens[name] for name in ("special", "first piece of a word")) == features.tokens
    assert len(found.probes) == 4 and found.probe(1, fold=3).kind == "naive"
    share = len(features.rows(split.splits[0][2])) / features.tokens
    assert share < 0.3  # the split tests some of the tokens, the folds all of them
    training, validation, test = (len(features.rows(part)) for part in split.splits[0])
    pooled = (split.train * training + split.validation * validation + split.test * test) / features.tokens
    assert found.test == pytest.approx(pooled, abs=1e-12)


def test_rates_by_class_add_up(model: Any, tmp_path: Path) -> None:
    tags = [["NOUN" if word.endswith(("1", "2")) else "VERB" for word in text.split()] for text in TEXTS]
    found = ch.token_identifiability(model, TEXTS, distance="l2", parts_of_speech=tags, folder=tmp_path)
    total = len(found.by_class["special"]) * 0.0
    for names in (("special", "NOUN", "VERB"), ("special", "first piece of a word")):
        count = sum(found.class_tokens[name] for name in names)
        total = sum(found.by_class[name] * found.class_tokens[name] for name in names) / count
        assert total == pytest.approx(found.test, abs=1e-12)
    assert "punctuation" not in found.by_class  # there is none in these texts
    with pytest.raises(errors.InputError, match=r"text 3: parts of speech; got 1 tags; allowed: 8 words"):
        ch.token_identifiability(model, TEXTS, parts_of_speech=[*tags[:3], ["NOUN"], *tags[4:]])


def test_the_interval_covers_the_truth_of_dependent_tokens() -> None:
    """Tokens of one example are all right or all wrong: an interval by token would be far too narrow."""
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        right = [np.full(20, random.random() < 0.7) for _ in range(60)]
        low, high = interval(right, trial)
        covered += low <= 0.7 <= high
    assert 176 <= covered <= 200


def test_cross_layer_has_the_own_rates_on_its_diagonal(features: Features, tmp_path: Path) -> None:
    trained = identify(features, Recipe(**QUICK), folder=tmp_path)
    matrix = cross_layer(features, trained)["test"].reshape(3, 3)
    assert np.diag(matrix) == pytest.approx(trained.test, abs=1e-12)
    assert matrix[0, 2] < matrix[2, 2]


def test_neighbours_are_found_where_attention_carries_them(features: Features, tmp_path: Path) -> None:
    table = neighbour_recovery(features, Recipe(**QUICK), depths=[0, 2], offsets=(-1, 0, 1), folder=tmp_path)
    rate = dict(zip(zip(table["offset"].tolist(), table["depth"].tolist(), strict=True), table["test"], strict=True))
    own = identify(features, Recipe(**QUICK), folder=tmp_path)
    assert rate[0, 2] == own.test[2]
    assert rate[0, 0] == 1 and rate[1, 0] < 0.7  # before the first block only the position says something of others


def test_an_offset_pairs_each_state_with_the_input_so_much_further(features: Features) -> None:
    for offset in (-2, 0, 3):
        pairs = pair(features, [4, 7], offset)
        assert (pairs.wanted - pairs.rows).unique().tolist() == [offset]
        for example, wanted in zip(pairs.examples, pairs.wanted.split(pairs.sizes), strict=True):
            assert features.offsets[example] <= wanted.min() and wanted.max() < features.offsets[example + 1]
        assert len(pairs.rows) == sum(features.offsets[e + 1] - features.offsets[e] - abs(offset) for e in (4, 7))
    with pytest.raises(errors.InputError, match="no example is long enough for this offset; got 30"):
        pair(features, [4, 7], 30)


def test_less_data_and_larger_probes(features: Features, tmp_path: Path) -> None:
    recipe = Recipe("mlp", hidden=8, **QUICK)
    curve = data_size_curve(features, recipe, depth=2, shares=(0.2, 1.0), folder=tmp_path)
    assert curve["examples"].tolist() == [6, 28]
    assert curve["test"][1] == identify(features, recipe, depths=[2], folder=tmp_path).test[0]
    sizes = size_ablation(features, recipe, depth=2, hidden=(8, 32), dropout=(0.0, 0.5), folder=tmp_path)
    assert sizes["test"][0] == curve["test"][1]
    assert sizes["hidden"].tolist() == [8, 32, 8, 32] and len(set(sizes["train"].tolist())) > 1
    for wrong in (0.0, 1.5):
        with pytest.raises(errors.InputError, match=r"0 < share <= 1"):
            data_size_curve(features, recipe, depth=2, shares=(wrong,), folder=tmp_path)
    with pytest.raises(errors.InputError, match="size_ablation: probe; got 'linear'; allowed: 'mlp'"):
        size_ablation(features, Recipe(), depth=2, folder=tmp_path)


def test_embedding_sum_compares_with_what_the_norm_reads(model: Any, tmp_path: Path) -> None:
    found = ch.token_identifiability(model, TEXTS, embedding="sum", folder=tmp_path)
    test = found.splits[0][2]
    rates, sizes = [], []
    for example in test:
        trace = model.trace(TEXTS[example])
        one, _ = slowly(trace.hidden.double().numpy(), model.from_embedding(trace, "sum")[0].double().numpy(), "cosine")
        rates.append(one)
        sizes.append(len(trace.tokens))
    assert found.test == pytest.approx(np.average(rates, axis=0, weights=sizes), abs=1e-12)
    with pytest.raises(errors.NotDefined, match=r"differ in width; got 7 and 12.*embedding='output'"):
        ch.token_identifiability(ch.load(tiny("electra")), TEXTS, embedding="sum")
