"""Jacobian blocks d h_i^l / d x_j of every layer, query and key by forward-mode sweeps.

A tangent placed at input token j gives its column of the blocks for every query and every layer at once, so one sweep
serves all layers; a reverse sweep costs one pass a layer. Tangents are batched by vmap(jvp) over one shared primal.

`f` maps token vectors x [token, width] to states [layer, query, out]; it admits forward mode and vmap (fused attention
does not) and runs the model once a call.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clearhead.errors import NotDefined
from clearhead.progress import Progress

BUDGET = 512 * 2**20
"""The most memory, in bytes, that one chunk of tangents (or one group of explicit blocks) may take."""
CACHED = 16 * 2**20
"""Bytes of the largest tensor of a chunk beyond which a sweep slows down, since it leaves the processor's cache
(measured, 100 tokens of MiniLM, 32 MiB of cache: 68 ms a tangent at 20 MiB, 92 ms at 69 MiB)."""
LIVE = 6
"""Tensors as large as the largest that forward mode holds at a time (measured: 4.2 to 5.3, 12 to 500 tokens)."""
SETTLED, ROUNDS = 1e-6, 500

States = Callable[[Tensor], Tensor]


def disagreement(
    f: States, x: Float[Tensor, "token width"], states: Float[Tensor, "layer query out"]
) -> Float[Tensor, "layer"]:
    """|| f(x) - states || / || states || of every layer, in float64."""
    with torch.no_grad():
        error = f(x).double() - states.double()
    return error.flatten(1).norm(dim=1) / states.double().flatten(1).norm(dim=1)


def squared_norms(
    f: States, x: Float[Tensor, "token width"], *, budget: int = BUDGET, progress: Progress | None = None
) -> Float[Tensor, "layer query key"]:
    """||d h_i^l / d x_j||_F^2 in float64, exact: one tangent for each of the token * width input numbers.

    Errors: NotDefined where a derivative is not finite.
    """
    basis = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    (layers, queries, _), chunk = _plan(f, x, budget)
    total = torch.zeros(layers, queries, len(x), dtype=torch.float64, device=x.device)
    for key, _, column in _sweep(f, x, basis, range(len(x)), chunk, progress):
        total.index_add_(2, key, _squared(column).permute(1, 2, 0))
    return total


def sampled_norms(
    f: States,
    x: Float[Tensor, "token width"],
    probes: Float[Tensor, "probe width"],
    *,
    budget: int = BUDGET,
    progress: Progress | None = None,
) -> Float[Tensor, "probe layer query key"]:
    """||(d h_i^l / d x_j) u||^2 in float64 for every probe u, the same probes at every input token.

    For probes with E[u u^T] = I (`orthogonal_probes`) the mean over probes is an unbiased estimate of the squared
    Frobenius norm. Errors: NotDefined where a derivative is not finite.
    """
    (layers, queries, _), chunk = _plan(f, x, budget)
    samples = torch.zeros(len(probes), layers, queries, len(x), dtype=torch.float64, device=x.device)
    for key, probe, column in _sweep(f, x, probes.to(x), range(len(x)), chunk, progress):
        samples[probe, :, :, key] = _squared(column)
    return samples


def spectral_norms(
    f: States,
    x: Float[Tensor, "token width"],
    start: Float[Tensor, "probe width"] | None = None,
    *,
    budget: int = BUDGET,
    progress: Progress | None = None,
) -> Float[Tensor, "layer query key"]:
    """||d h_i^l / d x_j||_2 in float64, from the explicit blocks of one input token at a time.

    Without `start` by singular value decomposition; with it by block power iteration from those vectors (`top_value`).
    Blocks that do not fit into `budget` are made in groups of (layer, query), at the price of one sweep a group.
    Errors: NotDefined where a derivative is not finite or the iteration does not settle.
    """
    (layers, queries, out), chunk = _plan(f, x, budget)
    norms = torch.zeros(layers * queries, len(x), dtype=torch.float64, device=x.device)
    basis = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    group = max(1, budget // (out * x.shape[1] * x.element_size()))
    groups = [slice(row, min(row + group, len(norms))) for row in range(0, len(norms), group)]
    for number, rows in enumerate(groups):
        for key in range(len(x)):
            blocks = x.new_empty(rows.stop - rows.start, out, x.shape[1])
            for _, entry, column in _sweep(f, x, basis, [key], chunk):
                blocks[:, :, entry] = column.flatten(1, 2)[:, rows].permute(1, 2, 0)
            for row, block in enumerate(blocks, rows.start):
                wide = block.double()
                norms[row, key] = torch.linalg.matrix_norm(wide, 2) if start is None else top_value(wide, start)
            if progress:
                progress(number * len(x) + key + 1, len(groups) * len(x))
    return norms.unflatten(0, (layers, queries))


def top_value(block: Float[Tensor, "out width"], start: Float[Tensor, "probe width"]) -> Float[Tensor, ""]:
    """The largest singular value by block power iteration from the vectors `start` (Rayleigh-Ritz at every round).

    Each round raises it by a step that shrinks by a steady factor r; it stops once step <= 1e-6 (1 - r) of the value,
    so that all steps left out sum to less than 1e-6. Errors: NotDefined where 500 rounds do not reach that (singular
    values too close for so few vectors).
    """
    basis = torch.linalg.qr(start.to(block).T).Q
    value, step = block.new_zeros(()), block.new_tensor(torch.inf)
    for _ in range(ROUNDS):
        image = block @ basis
        top = torch.linalg.matrix_norm(image, 2)
        ratio = (top - value) / step
        value, step = top, top - value
        if step <= SETTLED * (1 - ratio) * value:
            return value
        basis = torch.linalg.qr(block.T @ image).Q
    raise NotDefined(
        f"Spectral norm: power iteration of width {len(start)} did not settle in {ROUNDS} rounds",
        do="Use more probes, or probes=None for the exact norm.",
    )


def orthogonal_probes(count: int, width: int, seed: int) -> Float[Tensor, "probe width"]:
    """`count` orthogonal directions of squared length `width`, uniform (Haar), in float64: E[u u^T] = I.

    With count == width, sum_u ||J u||^2 / count = ||J||_F^2 exactly. The same on every machine: drawn on the CPU.
    """
    gaussian = torch.randn(width, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q, r = torch.linalg.qr(gaussian)
    return (q * r.diagonal().sign()).T * math.sqrt(width)


def contributions(norms: Float[Tensor, "*batch layer query key"]) -> Float[Tensor, "*batch layer query key"]:
    """Each norm divided by the sum of its row. Errors: NotDefined for a row that sums to 0."""
    total = norms.sum(-1, keepdim=True)
    if not total.all():
        layer, query = (total.squeeze(-1) == 0).nonzero()[0, -2:].tolist()
        raise NotDefined(f"Contributions of layer {layer} to token {query}: no input token has any influence on it")
    return norms / total


def jackknife(
    samples: Float[Tensor, "probe layer query key"], width: int
) -> tuple[Float[Tensor, "layer query key"], Float[Tensor, "layer query key"], Float[Tensor, "layer query key"]]:
    """(contributions, their standard error, their bias) from squared norms by probe (`sampled_norms`).

    c = contributions(sqrt(mean over probes)). With c_(p) the same without probe p at every token, k probes of a
    population of `width` orthogonal ones and f = 1 - k / width (drawing without replacement; 0 at k = width):

        bias = f (k - 1) (mean_p c_(p) - c)
        stderr^2 = f (k - 1) / k sum_p (c_(p) - mean_p c_(p))^2 * (t / 2)^2

    t is the quantile of Student's distribution with k - 1 degrees of freedom at the level that 2 has in the normal
    one: the spread is itself an estimate from k values, and without that factor c +- 2 stderr holds the truth in 84 %
    of cases at k = 4, not 95 % (measured on MiniLM; with it 94 to 95 % for k = 2, 4, 8, 16, 32).
    """
    from scipy.special import ndtr, stdtrit

    count = len(samples)
    total = samples.sum(0)
    value = contributions((total / count).sqrt())
    mean, squares = torch.zeros_like(total), torch.zeros_like(total)  # one probe at a time (Welford): texts may be long
    for number, sample in enumerate(samples, 1):
        without = contributions(((total - sample) / (count - 1)).clamp_min(0).sqrt())
        step = without - mean
        mean += step / number
        squares += step * (without - mean)
    finite = 1 - count / width
    bias = finite * (count - 1) * (mean - value)
    variance = finite * (count - 1) / count * squares
    student = float(stdtrit(count - 1, ndtr(2.0))) / 2
    return value, student * variance.sqrt(), bias


def _plan(f: States, x: Float[Tensor, "token width"], budget: int) -> tuple[tuple[int, int, int], int]:
    """(shape of f(x), number of tangents a chunk), from one run of f: within the budget, and fast."""
    with torch.no_grad(), _Largest() as largest:
        states = f(x)
    one = LIVE * largest.size + 2 * states.nbytes
    chunk = max(1, min(budget // one, max(8, CACHED // largest.size)))
    return (states.shape[0], states.shape[1], states.shape[2]), chunk


class _Largest(TorchDispatchMode):
    """Records the bytes of the largest tensor that is made (views aside)."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.size = max([self.size, *(leaf.nbytes for leaf in tree_leaves(out) if isinstance(leaf, Tensor))])
        return out


def _sweep(
    f: States,
    x: Float[Tensor, "token width"],
    directions: Float[Tensor, "direction width"],
    keys: Sequence[int],
    chunk: int,
    progress: Progress | None = None,
) -> Iterator[tuple[Int[Tensor, "tangent"], Int[Tensor, "tangent"], Float[Tensor, "tangent layer query out"]]]:
    """(key, direction, column) of `chunk` tangents at a time: every direction at every one of the tokens `keys`."""

    def derivative(tangent: Tensor) -> Tensor:
        return jvp(f, (x,), (tangent,))[1]

    key = torch.tensor(keys, device=x.device).repeat_interleave(len(directions))
    direction = torch.arange(len(directions), device=x.device).repeat(len(keys))
    for start in range(0, len(key), chunk):
        part = slice(start, start + chunk)
        tangents = x.new_zeros(len(key[part]), *x.shape)
        tangents[range(len(tangents)), key[part]] = directions[direction[part]]
        with torch.no_grad():
            column = vmap(derivative)(tangents)
        if not column.isfinite().all():
            layer = int((~column.isfinite()).nonzero()[:, 1].min())
            raise NotDefined(
                f"Jacobian of the states after layer {layer} is not finite in {str(x.dtype).removeprefix('torch.')}",
                do="Load the model with dtype='float32' or 'float64'.",
            )
        yield key[part], direction[part], column
        if progress:
            progress(min(start + chunk, len(key)), len(key))


def _squared(column: Float[Tensor, "tangent layer query out"]) -> Float[Tensor, "tangent layer query"]:
    return torch.linalg.vector_norm(column, dim=-1, dtype=torch.float64).square()
