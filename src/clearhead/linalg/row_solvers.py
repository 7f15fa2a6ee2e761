"""Four ways to effective attention, each for the value heads for which it is proven.

With more keys than width, and the values independent: through G = V^T V, in an orthonormal basis of the values where
all rows see the same keys (`shared_basis`), by Woodbury's identity where they differ in a few (`grown_gram`). With no
more keys than width and all of them independent, effective attention is attention (`full_row_rank`); with equal values
among them, its mean over equal keys (`equal_values`). Everything else by singular values (`singular_values`).

Factors are float64. `limit` bounds the squared condition number that a Cholesky factor must prove.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.linalg.rank import EPS64, inverse_factor
from clearhead.linalg.rows import Piece, Rows


def full_row_rank(rows: Rows, limit: float) -> tuple[Bool[Tensor, " kv"], Piece | None]:
    """Where V of all keys has full row rank, so has that of each row's keys, no worse conditioned: its V V^T is a
    principal part of the larger one.

    From outputs alone a_i = o_i V^T (V V^T)^-1, only for rows that see the same keys.
    """
    gram = rows.values @ rows.values.mT
    factor, bound = inverse_factor(gram)
    squared = bound * torch.linalg.matrix_norm(gram)
    proven = (squared < limit) & (rows.reading.probabilities is not None or rows.block.same)
    if not proven.any():
        return proven, None
    chosen = rows.only(proven)
    weights = chosen.attention
    if weights is None:
        inverse = _those(proven, factor.mT @ factor)
        weights = chosen.outputs @ chosen.values[:, None].mT @ inverse[:, None]
    return proven, Piece(chosen, weights, _root(squared[proven]), exact=True)


def shared_basis(rows: Rows, gram: Float[Tensor, "kv width width"], limit: float) -> tuple[Tensor, Piece | None]:
    """All rows see the same keys. With G = V^T V = L L^T, F = L^-1 and Q = V F^T, orthonormal: A_eff = (A Q) Q^T.

    From outputs alone (O F^T F) V^T, in their own precision: as they are rounded, a basis would not make it better.
    """
    factor, bound = inverse_factor(gram)
    squared = bound * torch.linalg.matrix_norm(gram)
    proven = squared < limit
    if not proven.any():
        return proven, None
    chosen, factor = rows.only(proven), _those(proven, factor)
    attention, condition = chosen.attention, _root(squared[proven])
    if attention is None:
        outputs = chosen.recorded
        own = factor[:, None].to(outputs.dtype)
        return proven, Piece(chosen, outputs @ own.mT @ own, condition, chosen.values, outputs=outputs)
    basis = chosen.values @ factor.mT
    return proven, Piece(chosen, _on_basis(attention, basis), condition, basis)


def grown_gram(rows: Rows, gram: Float[Tensor, "kv width width"], limit: float) -> tuple[Tensor, Piece | None]:
    """Rows that differ in a few keys. `gram` is that of the core, which every row sees: any row's G_i is at least that,
    so that its inverse bounds theirs. a_eff,i = V_i y_i with y_i = G_i^-1 o_i, whose error is bounded by its residual.
    """
    seen = rows.block.seen(gram.device)
    extra = ~seen.all(0)
    factor, bound = inverse_factor(gram)
    mass = torch.linalg.matrix_norm(gram) + rows.values[:, extra].square().sum((1, 2))
    proven = bound * mass < limit
    if not proven.any():
        return proven, None
    chosen = rows.only(proven)
    gram, factor, bound, mass = (_those(proven, each) for each in (gram, factor, bound, mass))
    outputs = chosen.outputs
    weights, residual = _woodbury(gram, factor, chosen.values[:, extra], seen[:, extra], outputs)
    rounding = EPS64 * mass[:, None, None] * weights.norm(dim=-1)
    error = (residual + rounding) * bound[:, None, None].sqrt()
    norm = (weights * outputs).sum(-1).clamp(min=0).sqrt()
    good = (error <= 4 * limit * EPS64 * norm).all(2).all(1)
    proven = proven.index_put((proven.nonzero()[:, 0],), good)
    if not good.any():
        return proven, None
    kept = chosen.only(good)
    condition = _root((bound * mass)[good])
    weights, outputs = _those(good, weights), _those(good, outputs)
    return proven, Piece(kept, weights, condition, kept.values, seen=seen, outputs=outputs)


def _woodbury(
    gram: Float[Tensor, "kv width width"],
    factor: Float[Tensor, "kv width width"],
    extra: Float[Tensor, "kv extra width"],
    seen: Bool[Tensor, "query extra"],
    outputs: Float[Tensor, "kv group query width"],
) -> tuple[Float[Tensor, "kv group query width"], Float[Tensor, "kv group query"]]:
    """y_i = G_i^-1 o_i and || o_i - G_i y_i ||, for G_i = gram + X_i^T X_i, X_i the extra values that row i sees.

    G_i^-1 = P - P X_i^T (1 + X_i P X_i^T)^-1 X_i P with P = gram^-1.
    """
    inverse = (factor.mT @ factor)[:, None]
    crossed = extra[:, None] @ inverse
    inner = crossed @ extra[:, None].mT
    both = seen[:, :, None] & seen[:, None, :]
    lower, _ = torch.linalg.cholesky_ex(torch.where(both, inner, 0.0) + torch.eye(len(both[0]), device=gram.device))
    plain = outputs @ inverse
    inside = (plain @ extra[:, None].mT) * seen
    inside = torch.cholesky_solve(inside.permute(0, 2, 3, 1), lower).permute(0, 3, 1, 2)
    y = plain - inside @ crossed
    residual = outputs - y @ gram[:, None] - ((y @ extra[:, None].mT) * seen) @ extra[:, None]
    return y, residual.norm(dim=-1)


def equal_values(rows: Rows, limit: float) -> Piece | None:
    """One value head with keys of equal values, the different ones independent: the mean of attention over equal keys.

    Repeated tokens in layer 0 of a rotary model: their values carry no position. None where that is not so (or, from
    outputs alone, where the rows see different keys).
    """
    different, which = torch.unique(rows.values[0], dim=0, return_inverse=True)
    known = rows.reading.probabilities is not None or rows.block.same
    if not known or len(different) == len(which) or len(different) > different.shape[1]:
        return None
    member = torch.nn.functional.one_hot(which, len(different)).double()
    gram = different @ different.mT
    factor, bound = inverse_factor(gram)
    squared = bound * torch.linalg.matrix_norm(gram) * member.sum(0).max()
    if not squared < limit:
        return None
    seen = rows.block.seen(member.device).double()
    attention = rows.attention
    sums = rows.outputs @ different.mT @ (factor.mT @ factor) if attention is None else attention.double() @ member
    means = sums / (seen @ member).clamp(min=1)
    return Piece(rows, means[..., which] * seen, _root(squared))


def singular_values(rows: Rows, tolerance: float) -> Iterator[Piece]:
    """All rows see the same keys: U from a thin singular value decomposition, without directions below tolerance."""
    u, s, w = torch.linalg.svd(rows.values, full_matrices=False)
    keep = (s > s[:, :1] * tolerance) & (s > 0)
    condition = float((s[:, 0] / s.where(keep, torch.inf).amin(-1)).max())
    full = keep.sum(-1) == rows.values.shape[1]
    for exact, chosen in ((True, full), (False, ~full)):
        if not chosen.any():
            continue
        some, kept = rows.only(chosen), keep[chosen]
        if exact and some.attention is not None:
            yield Piece(some, some.attention, condition, exact=True)
            continue
        basis = u[chosen] * kept[:, None]
        if some.attention is not None:
            weights = _on_basis(some.attention, basis)
        else:
            weights = _on_basis(some.recorded, w[chosen].mT * (kept / s[chosen].where(kept, 1.0))[:, None])
        yield Piece(some, weights, condition, basis, exact=exact)


def _on_basis(rows: Float[Tensor, "kv group query key"], basis: Float[Tensor, "kv key rank"]) -> Tensor:
    """rows @ basis in the precision of the rows (float32 at least): orthonormal columns may be rounded to that."""
    work = torch.promote_types(rows.dtype, torch.float32)
    return rows.to(work) @ basis[:, None].to(work)


def _those(chosen: Tensor, tensor: Tensor) -> Tensor:
    """tensor[chosen], without a copy where all are."""
    return tensor if bool(chosen.all()) else tensor[chosen]


def _root(squared: Tensor) -> float:
    return float(squared.max().sqrt())
