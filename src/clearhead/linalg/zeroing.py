"""How far the output of a block turns when the value of one token is zeroed."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from clearhead.linalg.block import Replay, after_attention

CHUNK_BYTES = 128 * 2**20
"""The most memory of one batch of changed positions."""


def value_distances(ran: Replay) -> Float[Tensor, "query key"]:
    """Cosine distance between each row of a block's output and the same row with value j zeroed in all heads.

    Only attention's output at i moves, by -sum_h A_h[i, j] v_j W_O_h; what follows works position by position, so the
    pairs (i, j) with any weight are run through it as one long batch. 1 - cos as || a / |a| - b / |b| ||^2 / 2, which
    keeps its digits where the two are near. A pair of no weight moves nothing: exactly 0. Float64.
    """
    weights = ran.probabilities
    groups = weights.shape[0] // ran.values.shape[0]
    values = ran.values.repeat_interleave(groups, 0)
    written = (values @ ran.block.output_weight).transpose(0, 1)  # [key, head, width]
    own = normalize(ran.output, dim=-1, eps=0.0)
    distances = torch.zeros_like(weights[0])
    width = 4 * ran.inner.shape[-1] + 8 * ran.x.shape[-1]
    for keys in torch.arange(len(written)).split(max(1, CHUNK_BYTES // (8 * width * len(written)))):
        query, place = (weights[..., keys] != 0).any(0).nonzero().unbind(1)
        taken = (weights[..., keys].permute(2, 1, 0) @ written[keys])[place, query]
        output = after_attention(ran.block, ran.x[query], ran.attention[query] - taken)[-1]
        turned = normalize(output, dim=-1, eps=0.0)
        distances[query, keys[0] + place] = (turned - own[query]).square().sum(-1) / 2
    return distances
