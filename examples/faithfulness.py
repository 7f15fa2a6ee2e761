"""Which methods predict a model best? Sentiment on MiniLM, similarity on MPNet, the next token on Gemma, on a CPU.

    python examples/faithfulness.py sentiment  SENTENCES.tsv  -o sentiment.html
    python examples/faithfulness.py similarity PAIRS.tsv      -o similarity.html  --model FOLDER
    python examples/faithfulness.py next-token PARAGRAPHS.txt -o next-token.html  --model FILE.gguf

SENTENCES: SST-2's form, `sentence TAB label` (0 or 1) under a header. PAIRS: MRPC's form, `label, id, id, sentence,
sentence` by tabs under a header. PARAGRAPHS: a text a line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import clearhead as ch

SHORTEST, LONGEST = 6, 24
"""Words of a text that is taken."""


def rows(path: Path, seed: int) -> list[list[str]]:
    """The lines of a table without its header, in a random order."""
    lines = [line.split("\t") for line in path.read_text("utf-8").splitlines()[1:] if line.strip()]
    return [lines[k] for k in np.random.default_rng(seed).permutation(len(lines))]


def fits(text: str) -> bool:
    return SHORTEST <= len(text.split()) <= LONGEST


def pooled(output: Any) -> Tensor:
    return output.last_hidden_state.double().mean(1)


def train(model: ch.Model, sentences: list[str], labels: Tensor) -> tuple[Tensor, Tensor]:
    """(weight, bias) of a logistic regression on the frozen model's mean-pooled states."""
    with torch.no_grad():
        features = torch.cat([pooled(model.hf(**model.tokenizer(s, return_tensors="pt"))) for s in sentences])  # pyright: ignore[reportCallIssue]
    weight = torch.zeros(features.shape[-1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200)

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = features @ weight + bias
        value = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels) + 1e-3 * weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)  # pyright: ignore[reportArgumentType]
    return weight.detach(), bias.detach()


def predicted(weight: Tensor, bias: Tensor, positive: bool) -> Callable[[Any], Tensor]:
    """The probability of one class."""

    def probability(output: Any) -> Tensor:
        logit = pooled(output) @ weight + bias
        return (logit if positive else -logit).sigmoid()

    return probability


def sentiment(model: ch.Model, path: Path, count: int, seed: int) -> tuple[list[str], list[Any]]:
    """Sentences that the classifier was not trained on, and the probability of the class that it gives each."""
    found = rows(path, seed)
    kept = len(found) * 2 // 3
    labels = torch.tensor([float(label) for _, label in found], dtype=torch.float64)
    weight, bias = train(model, [sentence for sentence, _ in found[:kept]], labels[:kept])
    right, texts, goals = 0, [], []
    for (sentence, _), label in zip(found[kept:], labels[kept:], strict=True):
        with torch.no_grad():
            output = model.hf(**model.tokenizer(sentence, return_tensors="pt"))  # pyright: ignore[reportCallIssue]
        positive = bool(pooled(output) @ weight + bias > 0)
        right += positive == bool(label)
        if fits(sentence) and len(texts) < count:
            texts.append(sentence.strip())
            goals.append(ch.Goal("probability of the class it gives", "mean", predicted(weight, bias, positive)))
    sys.stdout.write(f"classifier: {right / (len(found) - kept):.1%} right of {len(found) - kept} sentences left out\n")
    return texts, goals


def similarity(path: Path, count: int, seed: int) -> tuple[list[str], list[Any]]:
    """First sentences of paraphrase pairs, and the similarity to the second."""
    pairs = [(line[3], line[4]) for line in rows(path, seed) if line[0] == "1" and fits(line[3])][:count]
    return [first for first, _ in pairs], [ch.SimilarTo(second) for _, second in pairs]


def next_token(model: ch.Model, path: Path, count: int, seed: int) -> tuple[list[str], list[Any]]:
    """Beginnings of paragraphs, and the next token that the model finds most likely."""
    long = [line for line in path.read_text("utf-8").splitlines() if len(line.split()) > 2 * LONGEST]
    picked = np.random.default_rng(seed).choice(len(long), count, replace=False)
    texts = [" ".join(long[k].split()[:16]) for k in picked]
    if hasattr(model.hf, "lm_head"):
        return texts, [None] * count
    return texts, [tied_token(model, text) for text in texts]


def tied_token(model: ch.Model, text: str) -> ch.Goal:
    """Of a file without a head whose output weights are its embeddings (GGUF files of Gemma 3)."""
    if not model.config.tie_word_embeddings:
        raise SystemExit("this model has no head, and its configuration does not tie one to the embeddings")
    weight: Any = getattr(model.hf.get_input_embeddings(), "weight")  # noqa: B009

    def probabilities(output: Any) -> Tensor:
        return (output.last_hidden_state[:, -1] @ weight.T).double().softmax(-1)

    with torch.no_grad():
        best = int(probabilities(model.hf(**model.tokenizer(text, return_tensors="pt"), use_cache=False))[0].argmax())  # pyright: ignore[reportCallIssue]
    return ch.Goal(
        "probability of the next token", "last", lambda output: probabilities(output)[:, best], {"use_cache": False}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=("sentiment", "similarity", "next-token"))
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--removal", choices=("delete", "mask", "mean"), default="delete")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", action="append", help="may be repeated [default: all]")
    parser.add_argument("--quick", action="store_true", help="without exact attribution and shuffled weights")
    given = parser.parse_args()
    model = ch.load(given.model)
    if given.task == "sentiment":
        texts, targets = sentiment(model, given.data, given.texts, given.seed)
    elif given.task == "similarity":
        texts, targets = similarity(given.data, given.texts, given.seed)
    else:
        texts, targets = next_token(model, given.data, given.texts, given.seed)
    found = ch.compare(
        model,
        texts,
        given.method or "all",
        target=targets,
        removal=given.removal,
        seed=given.seed,
        exact_hta=not given.quick,
        sanity=not given.quick,
    )
    sys.stdout.write(f"{found.table.to_pandas().to_string()}\n")
    found.save(given.output, overwrite=True)
    found.save(given.output.with_suffix(".parquet"), overwrite=True)


if __name__ == "__main__":
    main()
