"""Statistics of the estimate: unbiased, as spread as theory says, and its stated error honest."""

from itertools import combinations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torch import Tensor

from clearhead import linalg
from clearhead.models.load import load
from tests.tiny import tiny, words

WIDTH, DRAWS, EXAMPLES = 6, 300, 30
# Two-sided level of a false alarm, 1e-6 a run, shared by all examples; a mean of 300 bounded draws is normal enough
# there (skewness of one draw at most 2, so 2 / sqrt(300) = 0.12 of the mean: less than the half sigma added).
FIRM = norm.isf(1e-6 / 2 / EXAMPLES) + 0.5


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**31), probes=st.integers(1, WIDTH), rank=st.integers(1, WIDTH))
def test_squared_norms_are_unbiased(seed: int, probes: int, rank: int) -> None:
    """z-test of the mean over many seeds, with the variance in closed form.

    For u uniform on the sphere of squared radius d and S = J^T J: Var(u^T S u) = 2 (d tr S^2 - (tr S)^2) / (d + 2);
    for the mean of k orthogonal ones it is that times (d - k) / (k (d - 1)), since all d of them sum to a constant.
    """
    factor = torch.randn(4, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    block = factor @ torch.randn(rank, WIDTH, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    x = torch.zeros(1, WIDTH, dtype=torch.float64)
    every = torch.cat([linalg.orthogonal_probes(probes, WIDTH, draw) for draw in range(seed, seed + DRAWS)])
    samples = linalg.sampled_norms(lambda x: (x @ block.T)[None], x, every)
    draws = samples.reshape(DRAWS, probes).mean(1)
    s, d, k = block.T @ block, WIDTH, probes
    trace = s.trace()
    variance = 2 * (d * (s @ s).trace() - trace**2) / (d + 2) * (d - k) / (k * (d - 1))
    if k == d:
        assert float((draws / trace - 1).abs().max()) < 1e-12
    else:
        assert abs(float((draws.mean() - trace) / (variance / DRAWS).sqrt())) < FIRM


def blocks_of_a_tiny_model() -> tuple[Tensor, Tensor, int]:
    """(J^T J of every block [layer, query, key, in, in], exact contributions, width) of a tiny BERT of width 48."""
    model, tokenizer = tiny("bert", torch.float64, hidden_size=48, intermediate_size=64)
    trace = load((model, tokenizer)).trace(words(6))
    x, f = trace.model.from_embedding(trace, "output")
    jacobian = torch.autograd.functional.jacobian(f, x)  # [layer, query, out, key, in]
    gram = torch.einsum("lqakb,lqakc->lqkbc", jacobian, jacobian)
    return gram, linalg.contributions(gram.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt()), x.shape[1]


def test_two_standard_errors_cover_the_truth() -> None:
    """Between 90 and 99 %, for few probes and many, over 60 seeds; and the error is not inflated.

    Not inflated: the mean stated variance, less Student's factor, is that of the estimates over seeds, to 15 %
    (60 seeds x 128 contributions, far from independent: the seeds alone give sqrt(2 / 59) = 18 % for one of them).
    """
    gram, truth, width = blocks_of_a_tiny_model()
    for probes, student in ((4, 1.653), (8, 1.214), (16, 1.091), (32, 1.042)):  # t(k - 1) at 97.7 %, halved: a t table
        values: list[Tensor] = []
        errors: list[Tensor] = []
        for seed in range(60):
            u = linalg.orthogonal_probes(probes, width, seed)
            value, stderr, _ = linalg.jackknife(torch.einsum("pb,lqkbc,pc->plqk", u, gram, u), width)
            values.append(value)
            errors.append(stderr)
        value, stderr = torch.stack(values), torch.stack(errors)
        covered = float(((value - truth).abs() < 2 * stderr).double().mean())
        assert 0.90 <= covered <= 0.99, (probes, covered)
        stated = float((stderr / student).square().mean() / (value - truth).square().mean())
        assert 0.85 < stated < 1.15, (probes, stated)


@given(seed=st.integers(0, 2**31))
def test_debiasing_removes_most_of_the_bias(seed: int) -> None:
    """Over all 70 ways to draw 4 of 8 probes, so without any noise: the bias left is less than half of what it was."""
    population = torch.rand(8, 1, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.2
    truth = linalg.contributions(population.mean(0).sqrt())
    drawn = [linalg.jackknife(population[list(some)], 8) for some in combinations(range(8), 4)]
    plain = torch.stack([value for value, _, _ in drawn]).mean(0) - truth
    corrected = torch.stack([value - bias for value, _, bias in drawn]).mean(0) - truth
    assert float(corrected.norm()) < 0.5 * float(plain.norm())
    assert float(corrected.sum(-1).abs().max()) < 1e-12  # rows still sum to 1


def test_jackknife_at_all_probes_is_exact() -> None:
    gram, truth, width = blocks_of_a_tiny_model()
    u = linalg.orthogonal_probes(width, width, 0)
    value, stderr, bias = linalg.jackknife(torch.einsum("pb,lqkbc,pc->plqk", u, gram, u), width)
    assert float((value - truth).abs().max()) < 1e-12
    assert not stderr.any()
    assert not bias.any()
