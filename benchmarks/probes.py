"""A linear cosine probe on pairs of sentences: ours against the plain loop, Adam from a random start.

Ours with all its epochs and the test; the plain loop until it has the validation rate that ours keeps (at most
`EPOCHS` epochs; batches of 256), at the published learning rate 1e-4 and at ten times that. The demo model, one
thread. Limit: 6 n d^2 flops an epoch (whitening, forward, gradient of the weights). Data: ../shared where it is there,
else the sentences of clearhead.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.table import line, row
from clearhead.models.load import load
from clearhead.probes import Features, Probe, Recipe, identify, write_features
from clearhead.probes.rates import pair, rate, recovered
from clearhead.studies.data import own_pairs, read_pairs

MRPC = Path(__file__).resolve().parents[2] / "shared" / "data" / "mrpc" / "dev.tsv"
EPOCHS = 150
DEPTH = 5


def plain_loop(
    features: Features, training: tuple[int, ...], validation: tuple[int, ...], goal: float, speed: float
) -> float:
    """Seconds until the validation rate is `goal`, or of all epochs."""
    torch.manual_seed(0)
    begun = time.perf_counter()
    states, targets = features.states(DEPTH).clone(), features.targets.clone()
    tokens = pair(features, training)
    linear = torch.nn.Linear(states.shape[1], targets.shape[1])
    torch.nn.init.xavier_uniform_(linear.weight)
    optimiser = torch.optim.Adam(linear.parameters(), lr=speed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(tokens.rows)).split(256):
            optimiser.zero_grad()
            predicted = linear(states[tokens.rows[batch]])
            (
                1 - torch.nn.functional.cosine_similarity(predicted, targets[tokens.wanted[batch]], dim=-1)
            ).mean().backward()
            optimiser.step()
        probe = Probe("linear", {"weight": linear.weight.detach().T, "bias": linear.bias.detach()})
        if rate(recovered(features, DEPTH, probe, pair(features, validation), "cosine")[0]) >= goal:
            break
    return time.perf_counter() - begun


def main() -> None:
    torch.set_num_threads(1)
    pairs = read_pairs(str(MRPC)) if MRPC.is_file() else own_pairs()
    with tempfile.TemporaryDirectory() as folder:
        features = write_features(load("demo"), pairs.pairs, Path(folder) / "features")
        begun = time.perf_counter()
        ours = identify(features, Recipe(), depths=[DEPTH], folder=Path(folder) / "probes")
        seconds = time.perf_counter() - begun
        training, validation, _ = ours.splits[0]
        for speed, promise in ((1e-4, 5), (1e-3, 1)):
            baseline = plain_loop(features, training, validation, float(ours.validation[0]), speed)
            what = f"linear cosine probe, depth {DEPTH}, {features.tokens} tokens, plain Adam at {speed:g}"
            row(what, seconds, baseline, at_least=promise)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        line("peak memory with it", f"{peak:.2f} GiB", "", "", "at most 4 GiB", peak <= 4)


if __name__ == "__main__":
    main()
