"""Numerical rank of value vectors: the tolerance that decides it, and how firm the decision is.

Everything here is float64, whatever the precision of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import NotDefined

Directions = Sequence[Float[Tensor, "value_width direction"] | None]
"""Of each head: see `read_directions`."""
EPS64 = torch.finfo(torch.float64).eps
UNDECIDED = 0.1
"""A tolerance from here on would drop what is plainly there: the precision cannot decide the rank."""
NAMES = {
    torch.finfo(d).eps: str(d).removeprefix("torch.")
    for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}


def rank_tolerance(keys: int, width: int, eps: float) -> float:
    """A singular value counts where s > s_max * tolerance; tolerance = max(keys, width) * eps.

    `eps`: machine epsilon of the lowest precision on the path. Errors: NotDefined where it cannot decide a rank.
    """
    tolerance = max(keys, width) * eps
    if tolerance >= UNDECIDED:
        raise NotDefined(
            f"The rank of {keys} value vectors of width {width} cannot be decided in {NAMES.get(eps, eps)}",
            got=f"a relative tolerance of max(keys, width) * eps = {tolerance:.2g}",
            allowed=f"below {UNDECIDED}",
            do="Load the model with dtype=float32 (or a shorter text).",
        )
    return tolerance


@dataclass(frozen=True)
class Spectrum:
    """Rank of a matrix, and the singular values on either side of the decision, relative to the largest.

    `dropped` is 0 where every singular value is kept (those beyond the smaller side of a matrix are zero).
    """

    rows: int
    rank: int
    kept: float
    dropped: float

    @property
    def nullity(self) -> int:
        """Dimension of the left null space."""
        return self.rows - self.rank


def spectrum(matrix: Float[Tensor, "row column"], eps: float) -> Spectrum:
    """Rank = number of singular values above tolerance * s_max (`rank_tolerance`). A zero matrix keeps 0 of rank 0."""
    rows, columns = matrix.shape
    tolerance = rank_tolerance(rows, columns, eps)
    s = torch.linalg.svdvals(matrix.double()).tolist() if columns else []
    if not s or s[0] == 0.0:
        return Spectrum(rows, 0, 0.0, 0.0)
    relative = [value / s[0] for value in s]
    rank = sum(value > tolerance for value in relative)
    return Spectrum(rows, rank, relative[rank - 1], relative[rank] if rank < len(s) else 0.0)


def inverse_factor(
    gram: Float[Tensor, "*batch width width"],
) -> tuple[Float[Tensor, "*batch width width"], Float[Tensor, "*batch"]]:
    """(F, b): F = L^-1 of gram = L L^T, so that gram^-1 = F^T F; b >= || gram^-1 ||_2, infinite without a factor."""
    lower, info = torch.linalg.cholesky_ex(gram)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.solve_triangular(lower, eye, upper=False)
    bound = torch.linalg.matrix_norm(factor.mT @ factor)
    return factor, bound.where((info == 0) & bound.isfinite(), torch.inf)


def read_directions(
    weight: Float[Tensor, "head value_width width"],
) -> Directions:
    """Per head, what the output projection H reads of a value: None where H has full row rank, so that the left null
    spaces of V H and of V are the same; else F = U_r S_r of H = U S W^T, for which those of V H and V F are the same.

    The weights are given numbers, not results: their rank is decided at the rounding of float32 (float64 weights: of
    float64), also where the model computes in less.
    """
    eps = min(torch.finfo(weight.dtype).eps, torch.finfo(torch.float32).eps)
    tolerance = max(weight.shape[1:]) * eps
    # Some columns of H already prove it: H H^T is at least that of a part of them.
    part = weight[:, :, : 2 * weight.shape[1]].double()
    at_least_32 = weight.to(torch.promote_types(weight.dtype, torch.float32))
    mass = torch.linalg.vector_norm(at_least_32, dim=(1, 2)).double().square()
    condition = inverse_factor(part @ part.mT)[1] * mass
    directions: list[Tensor | None] = []
    for head, squared in zip(weight, condition.tolist(), strict=True):
        if squared < min(1 / (4 * tolerance**2), 1e-4 / EPS64):
            directions.append(None)
            continue
        u, s, _ = torch.linalg.svd(head.double(), full_matrices=False)
        keep = s > s[0] * tolerance
        directions.append(None if bool(keep.all()) and len(s) == len(head) else u[:, keep] * s[keep])
    return directions


def value_matrix(
    values: Float[Tensor, "kv_head key value_width"], directions: Directions, head: int
) -> Float[Tensor, "key direction"]:
    """The values of one query head in float64, as far as the output projection reads them (`read_directions`)."""
    direction = directions[head]
    own = values[head // (len(directions) // len(values))].double()
    return own if direction is None else own @ direction


def certificate(
    values: Float[Tensor, "kv_head key value_width"],
    directions: Directions,
    intervals: Sequence[tuple[int, int]],
    eps: float,
) -> list[list[tuple[Spectrum, Spectrum]]]:
    """For each interval of keys and each query head: the spectra of V and of [V, 1] there, as single matrices.

    Query heads that read one value head whole share its spectra.
    """
    group = len(directions) // len(values)
    found: list[list[tuple[Spectrum, Spectrum]]] = []
    for start, stop in intervals:
        shared = [_both(own, eps) for own in values[:, start:stop].double()]
        found.append(
            [
                shared[head // group]
                if direction is None
                else _both(values[head // group, start:stop].double() @ direction, eps)
                for head, direction in enumerate(directions)
            ]
        )
    return found


def _both(values: Tensor, eps: float) -> tuple[Spectrum, Spectrum]:
    return spectrum(values, eps), spectrum(with_ones(values), eps)


def with_ones(values: Float[Tensor, "*batch key width"]) -> Float[Tensor, "*batch key width_and_one"]:
    """[V, c 1]: the sum of a row becomes one more output. c, the size of V's entries, keeps the condition."""
    size = values.square().mean((-2, -1), keepdim=True).sqrt().nan_to_num()
    size = size.where(size > 0, 1.0)
    return torch.cat([values, size.expand(*values.shape[:-1], 1)], -1)
