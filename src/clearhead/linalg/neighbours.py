"""Nearest neighbours of hidden states among the token vectors of the same text."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.errors import NotDefined

Distance = Literal["cosine", "l2"]


class Neighbours(NamedTuple):
    """What `nearest_candidates` finds for every state."""

    right: Bool[Tensor, "depth token"]
    """The state is strictly nearer to its own candidate than to every different one: a tie counts against it."""
    nearest: Int[Tensor, "depth token"]
    """Position of the nearest candidate: the own one where `right`, else the first that holds it."""
    margin: Float[Tensor, "depth token"]
    """Distance to the second nearest minus that to the nearest, among different candidates."""
    alone: Bool[Tensor, "token"]
    """No other position has an identical candidate."""


def nearest_candidates(
    states: Float[Tensor, "depth token width"],
    candidates: Float[Tensor, "candidate width"],
    distance: Distance,
    own: Int[Tensor, "token"] | None = None,
) -> Neighbours:
    """The nearest candidate of each state, in float64; `own` [token]: the position of each state's own candidate (by
    default candidate j is that of token j).

    Distance: "cosine" 1 - cos, or "l2" Euclidean. Identical candidates (equal in every bit) are one candidate.
    Errors: NotDefined for a cosine of a zero vector, or where all candidates are identical.
    """
    different, group = torch.unique(candidates, dim=0, return_inverse=True)
    if len(different) == 1:
        raise NotDefined("Nearest token vector: all tokens of the text have the same one", got=f"{len(group)} tokens")
    position = torch.arange(len(group), device=group.device) if own is None else own
    far = distances(states.double(), different.double(), distance)
    at_own = group[position].expand(len(states), -1)[..., None]
    mine = far.gather(-1, at_own).squeeze(-1)
    others = far.scatter(-1, at_own, torch.inf)
    holder = (group == torch.arange(len(different), device=group.device)[:, None]).int().argmax(-1)
    right = mine < others.amin(-1)
    nearest = torch.where(right, position, holder[others.argmin(-1)])
    first_two = far.sort(-1).values[..., :2]
    return Neighbours(right, nearest, first_two.diff(dim=-1).squeeze(-1), group.bincount()[group[position]] == 1)


def distances(
    states: Float[Tensor, "depth token width"], candidates: Float[Tensor, "candidate width"], distance: Distance
) -> Float[Tensor, "depth token candidate"]:
    """Distance of every state to every candidate. Errors: NotDefined for a cosine of a zero vector."""
    if distance == "l2":
        return torch.cdist(states, candidates[None], compute_mode="donot_use_mm_for_euclid_dist")
    for name, vectors in (("hidden state", states), ("token vector", candidates)):
        if not vectors.any(-1).all():
            raise NotDefined(f"Cosine distance of a {name} that is all zero", do="Use distance='l2'.")
    unit = torch.nn.functional.normalize(candidates, dim=-1, eps=0)
    return 1 - torch.nn.functional.normalize(states, dim=-1, eps=0) @ unit.T
