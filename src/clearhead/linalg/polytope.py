"""The polytope of attention rows with the same head output and the same sum: {a >= 0 : a [V, 1] = row [V, 1]}.

Linear programmes by HiGHS. The equalities are written with an orthonormal basis of the columns of [V, 1] (singular
values below the rank tolerance left out), so that each is one clean direction, and the captured row satisfies all.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linprog
from torch import Tensor

from clearhead.errors import NotDefined
from clearhead.linalg.rank import rank_tolerance, with_ones

FEASIBLE = 1e-9
"""How far HiGHS may leave a constraint, and so a weight (weights are at most 1)."""
SLACK = 1e-7
"""How far a solution may miss a constraint before it counts as failed."""


@dataclass(frozen=True)
class Polytope:
    """`directions` [key, rank]: orthonormal columns that every member agrees on with `row` (a member itself)."""

    directions: np.ndarray
    row: np.ndarray

    @property
    def is_point(self) -> bool:
        """True where [V, 1] has full row rank: no other row has the same output and sum."""
        return self.directions.shape[1] == len(self.row)

    def lowest(self, cost: np.ndarray) -> np.ndarray:
        """The member of least `cost` . a. Errors: NotDefined where HiGHS finds none (never a number in its place)."""
        solved = linprog(
            cost,
            A_eq=self.directions.T,
            b_eq=self.directions.T @ self.row,
            bounds=(0, None),
            method="highs",
            options={"primal_feasibility_tolerance": FEASIBLE, "dual_feasibility_tolerance": FEASIBLE},
        )
        member = np.asarray(solved.x, dtype=np.float64) if solved.x is not None else np.full(len(self.row), np.nan)
        missed = np.abs(self.directions.T @ (member - self.row)).max(initial=0.0)
        if solved.status != 0 or not (missed <= SLACK and member.min() >= -SLACK):
            raise NotDefined(
                "The rows of attention with the same head output: no solution of a linear programme",
                got=f"{solved.message} (equalities missed by {missed:.1g})",
                do="The row itself is a solution, so this is numerical: load the model with dtype=float64.",
            )
        return np.clip(member, 0.0, None)


def polytope(values: Float[Tensor, "key width"], row: Float[Tensor, " key"], eps: float) -> Polytope:
    """Of the rows over these keys (the visible ones). Errors: NotDefined where the precision cannot decide the rank."""
    matrix = with_ones(values.double())
    u, s, _ = torch.linalg.svd(matrix, full_matrices=False)
    keep = s > s[0] * rank_tolerance(matrix.shape[0], matrix.shape[1], eps)
    return Polytope(u[:, keep].cpu().numpy(), row.double().cpu().numpy())


def weight_bounds(
    values: Float[Tensor, "key width"], row: Float[Tensor, " key"], eps: float
) -> tuple[Float[np.ndarray, "bound key"], int]:
    """(lowest and highest value of each weight, dimension of the null space), by two linear programmes a key.

    The captured row lies between the two exactly; where the polytope is a point both are the row.
    """
    members = polytope(values, row, eps)
    free = len(members.row) - members.directions.shape[1]
    low, high = members.row.copy(), members.row.copy()
    if members.is_point:
        return np.stack([low, high]), free
    for key in range(len(members.row)):
        cost = np.zeros(len(members.row))
        cost[key] = 1.0
        low[key] = min(low[key], members.lowest(cost)[key])
        high[key] = max(high[key], members.lowest(-cost)[key])
    return np.stack([low, high]), free


def farthest_weights(
    values: Float[Tensor, "key width"], row: Float[Tensor, " key"], eps: float, *, starts: int, seed: int
) -> tuple[Float[np.ndarray, " key"], float]:
    """(the member found farthest from the row, their total variation 1/2 || a - row ||_1), the row itself for a point.

    The distance is convex, so its maximum lies at a corner but may be one of many: from `starts` random sign vectors s,
    go to the member that maximises s . (a - row), set s = sign(a - row), until nothing is gained.
    """
    members = polytope(values, row, eps)
    best, distance = members.row, 0.0
    if members.is_point:
        return best, distance
    random = np.random.default_rng(seed)
    for _ in range(starts):
        signs, reached = random.choice([-1.0, 1.0], len(members.row)), -1.0
        while True:
            member = members.lowest(-signs)
            gained = float(np.abs(member - members.row).sum() / 2)
            if gained <= reached + SLACK:
                break
            reached, signs = gained, np.where(member >= members.row, 1.0, -1.0)
            if reached > distance:
                best, distance = member, reached
    return best, distance


def relative_change(
    written: Float[Tensor, "key width"], row: Float[Tensor, " key"], other: Float[np.ndarray, " key"]
) -> float:
    """|| (other - row) T || / || row T ||, T what the head writes for each key; 0 where nothing is written at all."""
    matrix, own = written.double().cpu().numpy(), row.double().cpu().numpy()
    output = float(np.linalg.norm(own @ matrix))
    return float(np.linalg.norm((other - own) @ matrix)) / output if output > 0 else 0.0
