"""Effective attention: each row of attention without what no head output can see.

Row i of a head reads the value vectors V_S of the keys S it may see and gives o_i = a_i V_S. Any x with x^T V_S = 0 may
be added to a_i without changing o_i: the left null space of V_S. The effective row is a_i without its part in there,

    a_eff,i = a_i - a_i P = V_S (V_S^T V_S)^+ o_i = a_i U U^T,    U an orthonormal basis of the columns of V_S,

the row of least norm with the same output (Brunner et al. 2020, section 3; per visible keys: beyond the paper).

How it is solved, row by row or block by block, is in `row_blocks`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.linalg.rank import Directions, with_ones
from clearhead.linalg.row_blocks import pieces
from clearhead.linalg.rows import Piece, Reading


@dataclass(frozen=True)
class RowSums:
    """What is left of effective attention without its matrix. `exact`: rows whose values have full row rank."""

    norm_squared: Float[Tensor, "head query"]
    received: Float[Tensor, "head key"]
    exact: Bool[Tensor, "head query"]
    condition: float


def effective_attention(
    values: Float[Tensor, "kv_head key value_width"],
    start: Sequence[int],
    stop: Sequence[int],
    *,
    eps: float,
    probabilities: Float[Tensor, "head query key"] | None = None,
    outputs: Float[Tensor, "head query value_width"] | None = None,
    directions: Directions | None = None,
    row_sum: bool = False,
) -> tuple[Float[Tensor, "head query key"], float]:
    """(A_eff, condition) of one layer, from the attention `probabilities` or, without them, from the head `outputs`.

    `start`, `stop`: each query sees keys start <= key < stop. `directions`: what the output projection H of each head
    reads of a value (`read_directions`), for the null space of V H; without, that of V. `row_sum`: keep each row's sum
    too (null space of [V, 1]). `eps`: of the lowest precision on the path. Query head h reads value head
    h // (heads / kv_heads).
    A_eff is float64 for float64 probabilities or outputs, else float32; rows whose values have full row rank are the
    probabilities themselves. `condition`: largest ratio of singular values that any row was divided by.
    Errors: NotDefined where the precision cannot decide a rank.
    """
    given = probabilities if probabilities is not None else _needed(outputs)
    dtype = torch.promote_types(given.dtype, torch.float32)
    result = _zeros((given.shape[0], given.shape[1], values.shape[1]), dtype, given.device)
    worst = 1.0
    for reading in _readings(values, probabilities, outputs, directions, row_sum=row_sum):
        target = result[reading.heads].unflatten(0, (len(reading.values), -1))
        for piece in pieces(reading, start, stop, eps):
            worst = max(worst, piece.condition)
            _fill(target[:, :, piece.rows.block.queries, piece.rows.block.union], piece)
    return result, worst


def effective_row_sums(
    values: Float[Tensor, "kv_head key value_width"],
    start: Sequence[int],
    stop: Sequence[int],
    *,
    eps: float,
    probabilities: Float[Tensor, "head query key"] | None = None,
    outputs: Float[Tensor, "head query value_width"] | None = None,
    directions: Directions | None = None,
) -> RowSums:
    """|| a_eff,i ||^2 of every row and the effective mass that every key receives, without a query x key matrix.

    Arguments as in `effective_attention`. With y_i = (V_S^T V_S)^+ o_i: || a_eff,i ||^2 = y_i . o_i, and key j receives
    v_j . (sum of y_i over the rows that see j), a difference of cumulative sums. Linear in the number of keys.
    """
    given = probabilities if probabilities is not None else _needed(outputs)
    heads, queries, keys = given.shape[0], given.shape[1], values.shape[1]
    norms = torch.zeros(heads, queries, dtype=torch.float64, device=given.device)
    received = torch.zeros(heads, keys, dtype=torch.float64, device=given.device)
    exact = torch.zeros(heads, queries, dtype=torch.bool, device=given.device)
    worst = 1.0
    for reading in _readings(values, probabilities, outputs, directions, row_sum=False):
        shape = (len(reading.values), -1)
        norm, mass, whole = (every[reading.heads].unflatten(0, shape) for every in (norms, received, exact))
        steps = mass.new_zeros(*mass.shape[:2], keys + 1, reading.values.shape[-1])
        for piece in pieces(reading, start, stop, eps):
            worst = max(worst, piece.condition)
            kv, block = piece.rows.kv, piece.rows.block
            norm[kv, :, block.queries] = piece.norm_squared
            whole[kv, :, block.queries] = piece.exact
            if piece.seen is not None:
                _add_steps(steps, piece)
                continue
            total = piece.weights.sum(2, dtype=torch.float64)
            mass[kv, :, block.union] += total if piece.basis is None else total @ piece.basis.mT
        mass += torch.einsum("kgjw,kjw->kgj", steps.cumsum(2)[:, :, :-1], reading.values)
    return RowSums(norms, received, exact, worst)


def _add_steps(steps: Float[Tensor, "kv group key_and_end width"], piece: Piece) -> None:
    """Add y_i from the first key that row i sees, take it away after the last."""
    block = piece.rows.block
    first, last = (torch.tensor(b[block.queries], device=steps.device) for b in (block.start, block.stop))
    for at, kv in enumerate(piece.rows.kv.tolist()):
        steps[kv].index_add_(1, first, piece.weights[at]).index_add_(1, last, -piece.weights[at])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """By numpy on the CPU: it asks for large memory pages, which halves the time of writing a large matrix once."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, np.float64 if dtype == torch.float64 else np.float32))


def _fill(target: Float[Tensor, "kv group query key"], piece: Piece) -> None:
    """Write a piece into its place, without temporaries of more than one value head."""
    shared = piece.seen is None  # weights in the precision of what was given: the product need not be finer
    if shared and piece.basis is not None and len(piece.rows.kv) == len(target) and target.is_contiguous():
        weights, basis = piece.weights.flatten(1, 2).to(target.dtype), piece.basis.to(target.dtype)
        torch.bmm(weights, basis.mT, out=target.view(len(target), -1, target.shape[-1]))
        return
    for at, kv in enumerate(piece.rows.kv.tolist()):
        weights = piece.weights[at]
        if piece.basis is not None:
            dtype = target.dtype if shared else weights.dtype  # large float64 weights on the values cancel
            weights = weights.to(dtype) @ piece.basis[at].mT.to(dtype)
        target[kv].copy_(weights if piece.seen is None else weights * piece.seen)


def _needed(outputs: Tensor | None) -> Tensor:
    if outputs is None:
        raise TypeError("effective attention needs the probabilities or the outputs")
    return outputs


def _readings(
    values: Tensor,
    probabilities: Tensor | None,
    outputs: Tensor | None,
    directions: Directions | None,
    *,
    row_sum: bool,
) -> list[Reading]:
    """One Reading for the layer; one for each query head where some output projection lacks full row rank."""
    groups = (len(values), -1)
    heads = len(_needed(probabilities if outputs is None else outputs))
    if probabilities is None:
        recorded = _needed(outputs)
        recorded = recorded.to(torch.promote_types(recorded.dtype, torch.float32)).unflatten(0, groups)
        whole = Reading(slice(0, heads), values.double(), recorded, None)
    else:
        whole = Reading(slice(0, heads), values.double(), None, probabilities.unflatten(0, groups))
    readings = [whole]
    if directions is not None and any(direction is not None for direction in directions):
        readings = [_one_head(whole, head, direction) for head, direction in enumerate(directions)]
    return [_with_row_sum(reading) for reading in readings] if row_sum else readings


def _one_head(whole: Reading, head: int, direction: Tensor | None) -> Reading:
    """A query head by itself, its values as far as its output projection reads them."""
    kv, member = divmod(head, whole.heads.stop // len(whole.values))
    read = direction
    if read is None:
        read = torch.eye(whole.values.shape[-1], dtype=torch.float64, device=whole.values.device)
    p, o = (
        None if given is None else given[kv : kv + 1, member : member + 1]
        for given in (whole.probabilities, whole.outputs)
    )
    return Reading(slice(head, head + 1), whole.values[kv : kv + 1] @ read, None if o is None else o.double() @ read, p)


def _with_row_sum(reading: Reading) -> Reading:
    """[V, c 1] in place of V. Outputs recorded without probabilities come from rows that sum to 1."""
    values, outputs = with_ones(reading.values), reading.outputs
    if outputs is not None:
        ones = values[:, None, :1, -1:].expand(*outputs.shape[:3], 1)
        outputs = torch.cat([outputs.double(), ones], -1)
    return Reading(reading.heads, values, outputs, reading.probabilities)
