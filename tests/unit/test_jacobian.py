"""Jacobian sweeps against closed forms: linear maps, and attention whose probabilities are fixed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.errors import NotDefined
from clearhead.linalg import jacobian

LAYERS, TOKENS, WIDTH, HEADS = 3, 5, 8, 2
# The sweeps and the closed forms each sum at most a few hundred float64 products: 1e3 roundings of 2e-16, and a margin.
EXACT = 1e-12


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def fixed_attention(causal: bool = False) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """(f, blocks [layer, query, key, out, in]): x <- x + sum_h P_h x M_h with P fixed, so that f is linear.

    The Jacobian of one layer is delta_ij I + sum_h P_h[i, j] M_h^T; of several, the products of those.
    """
    p = random(LAYERS, HEADS, TOKENS, TOKENS, seed=1)
    p = (p.masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -torch.inf) if causal else p).softmax(-1)
    m = random(LAYERS, HEADS, WIDTH, WIDTH, seed=2)

    def f(x: Tensor) -> Tensor:
        states: list[Tensor] = []
        for layer in range(LAYERS):
            x = x + (p[layer] @ x @ m[layer]).sum(0)
            states.append(x)
        return torch.stack(states)

    eye = torch.eye(TOKENS)[:, :, None, None] * torch.eye(WIDTH, dtype=torch.float64)
    one = eye + torch.einsum("lhij,lhba->lijab", p, m)
    blocks = [one[0]]
    for layer in range(1, LAYERS):
        blocks.append(torch.einsum("ikab,kjbc->ijac", one[layer], blocks[-1]))
    return f, torch.stack(blocks)


def relative(ours: Tensor, truth: Tensor) -> float:
    return float((ours - truth).abs().max() / truth.abs().max())


def test_exact_norms_of_fixed_attention() -> None:
    f, blocks = fixed_attention()
    x = random(TOKENS, WIDTH, seed=3)
    assert relative(jacobian.squared_norms(f, x), blocks.square().sum((-1, -2))) < EXACT
    assert relative(jacobian.spectral_norms(f, x), torch.linalg.svdvals(blocks)[..., 0]) < EXACT


@pytest.mark.parametrize("probes", [1, 3, WIDTH])
def test_power_iteration_comes_within_its_tolerance(probes: int) -> None:
    f, blocks = fixed_attention()
    start = jacobian.orthogonal_probes(probes, WIDTH, 0)
    ours, truth = jacobian.spectral_norms(f, random(TOKENS, WIDTH), start), torch.linalg.svdvals(blocks)[..., 0]
    assert float((ours / truth - 1).abs().max()) < 1e-6  # what top_value promises
    assert float((ours / truth).max()) < 1 + EXACT  # from below


def test_power_iteration_says_when_it_does_not_settle() -> None:
    # Singular values 1, .999, .998, ... from one vector: the part outside the first shrinks by .998 a round, so that
    # 1e-6 is some 6000 rounds away; stopping at a small last step instead would be silently wrong by 1e-4.
    block = torch.diag(1 - torch.arange(WIDTH, dtype=torch.float64) / 1000)
    start = jacobian.orthogonal_probes(1, WIDTH, 0)
    with pytest.raises(NotDefined, match=r"width 1 did not settle in 500 rounds.*more probes"):
        jacobian.top_value(block, start)
    full = jacobian.orthogonal_probes(WIDTH, WIDTH, 0)
    assert abs(float(jacobian.top_value(block, full)) - 1) < EXACT
    assert float(jacobian.top_value(torch.zeros_like(block), full)) == 0


def test_all_orthogonal_probes_are_exact_and_one_is_not() -> None:
    f, blocks = fixed_attention()
    x, truth = random(TOKENS, WIDTH), blocks.square().sum((-1, -2))
    samples = jacobian.sampled_norms(f, x, jacobian.orthogonal_probes(WIDTH, WIDTH, 7))
    assert samples.shape == (WIDTH, LAYERS, TOKENS, TOKENS)
    assert relative(samples.mean(0), truth) < EXACT
    assert relative(samples[0], truth) > 0.01


def test_each_sample_is_the_product_with_its_probe() -> None:
    f, blocks = fixed_attention()
    probes = jacobian.orthogonal_probes(3, WIDTH, 1)
    truth = torch.einsum("lijab,pb->plija", blocks, probes).square().sum(-1)
    assert relative(jacobian.sampled_norms(f, random(TOKENS, WIDTH), probes), truth) < EXACT


@pytest.mark.parametrize("budget", [1, 20_000])
def test_budget_changes_the_chunks_and_nothing_else(budget: int) -> None:
    f, blocks = fixed_attention()
    x, probes = random(TOKENS, WIDTH), jacobian.orthogonal_probes(3, WIDTH, 1)
    seen: list[tuple[int, int]] = []
    small = jacobian.squared_norms(f, x, budget=budget, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 1
    assert seen[-1] == (TOKENS * WIDTH, TOKENS * WIDTH)
    assert relative(small, jacobian.squared_norms(f, x)) < EXACT
    assert relative(jacobian.sampled_norms(f, x, probes, budget=budget), jacobian.sampled_norms(f, x, probes)) < EXACT
    truth = torch.linalg.svdvals(blocks)[..., 0]
    assert relative(jacobian.spectral_norms(f, x, budget=budget), truth) < EXACT


def test_causal_future_is_exactly_zero() -> None:
    f, _ = fixed_attention(causal=True)
    x, future = random(TOKENS, WIDTH), torch.ones(TOKENS, TOKENS).triu(1).bool()
    probes = jacobian.orthogonal_probes(2, WIDTH, 0)
    for norms in (
        jacobian.squared_norms(f, x),
        jacobian.sampled_norms(f, x, probes),
        jacobian.spectral_norms(f, x),
        jacobian.spectral_norms(f, x, probes),
    ):
        assert not norms[..., future].any()
        assert norms[..., ~future].all()


def test_parameters_that_require_gradients_leave_no_graph() -> None:
    layer = torch.nn.Linear(WIDTH, WIDTH).double()
    norms = jacobian.squared_norms(lambda x: layer(x)[None], random(TOKENS, WIDTH))
    assert not norms.requires_grad
    assert relative(norms, torch.eye(TOKENS, dtype=torch.float64)[None] * layer.weight.detach().square().sum()) < EXACT


def test_half_precision_squares_neither_overflow_nor_vanish() -> None:
    scale = torch.tensor([3e4, 1e-6], dtype=torch.float16)  # squared: beyond float16 at either end
    norms = jacobian.squared_norms(lambda x: torch.stack([x * s for s in scale]), torch.ones(1, 4, dtype=torch.float16))
    assert relative(norms[:, 0, 0] / (4 * scale.double().square()), torch.ones(2, dtype=torch.float64)) < EXACT


def test_a_derivative_that_is_not_finite_names_layer_and_precision() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.stack([x, x.abs().sqrt()])

    x = random(TOKENS, WIDTH).float()
    x[2] = 0
    for norms in (jacobian.squared_norms, jacobian.spectral_norms):
        with pytest.raises(NotDefined, match="after layer 1 is not finite in float32"):
            norms(f, x)


def test_a_row_without_influence_is_not_defined() -> None:
    norms = torch.ones(2, 3, 3, dtype=torch.float64)
    norms[1, 2] = 0
    with pytest.raises(NotDefined, match="layer 1 to token 2"):
        jacobian.contributions(norms)
    norms[1, 2, 0] = 1e-300
    assert float(jacobian.contributions(norms)[1, 2, 0]) == 1


def test_probes_are_orthogonal_and_depend_on_the_seed_alone() -> None:
    probes = jacobian.orthogonal_probes(5, 12, 3)
    assert relative(probes @ probes.T, 12 * torch.eye(5, dtype=torch.float64)) < EXACT
    state = torch.random.get_rng_state()
    assert torch.equal(probes, jacobian.orthogonal_probes(5, 12, 3))
    assert torch.equal(state, torch.random.get_rng_state())
    assert relative(probes, jacobian.orthogonal_probes(5, 12, 4)) > 0.1


def test_an_interrupted_sweep_leaves_no_transform_behind() -> None:
    calls: list[int] = []

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return x[None].clone()

    with pytest.raises(KeyboardInterrupt):
        jacobian.squared_norms(f, random(TOKENS, WIDTH), budget=1)
    assert torch.is_grad_enabled()
    assert relative(jacobian.squared_norms(f, random(TOKENS, WIDTH)), WIDTH * torch.eye(TOKENS)[None].double()) < EXACT


def test_disagreement_is_that_of_each_layer() -> None:
    f, _ = fixed_attention()
    x = random(TOKENS, WIDTH)
    states = f(x)
    states[1] *= 1.25
    errors: Any = jacobian.disagreement(f, x, states)
    assert errors.tolist() == pytest.approx([0, 0.2, 0], abs=EXACT)
