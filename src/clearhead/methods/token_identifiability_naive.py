"""How often a hidden state is still nearest to its own token's vector."""

from __future__ import annotations

from typing import Any, Literal

from clearhead import linalg
from clearhead.errors import InputError, NotDefined
from clearhead.maps import Table
from clearhead.methods.registry import method, origin_of
from clearhead.trace import Embedding, Trace

ABOUT = {
    "depth": "state between blocks: 0 before the first, l + 1 after block l",
    "tokens": "number of tokens, special ones included",
    "identical": "tokens that share an identical token vector with another position",
    "rate": "share of tokens whose nearest token vector is their own (or one identical to it)",
    "strict_rate": "share of tokens whose nearest token vector is their own and at no other position",
}
ABOUT_TOKEN = {
    "depth": ABOUT["depth"],
    "token": "position of the token",
    "piece": "the token as the tokenizer spells it",
    "nearest": "position of the nearest token vector (the own one where right)",
    "margin": "distance of the second nearest minus that of the nearest different token vector",
    "right": "the nearest token vector is the own one or identical to it",
    "strict": "right, and no other position has an identical token vector",
}


@method(
    paper="Brunner et al. 2020, On Identifiability in Transformers (arXiv 1908.04211), section 4",
    dims=("depth",),
    unit="share of tokens",
    returns="table",
    cost="one pass; time ~ layers tokens^2 width",
    can="Whether a state is still nearest to its own input token, layer by layer.",
    cannot="Whether the token is lost where it is not: a trained probe may still find it (`ch.token_identifiability`).",
)
def token_identifiability_naive(
    trace: Trace,
    *,
    distance: Literal["cosine", "l2"] = "cosine",
    embedding: Embedding = "output",
    per_token: bool = False,
) -> Table:
    """Share of tokens whose hidden state is nearest to their own token vector, by depth.

    The nearest neighbour of state h_j at each depth among the token vectors x_1 .. x_n of the same text, with no
    trained map in between (the paper's g = identity). `embedding`: x as the first block reads it ("output", depth 0) or
    as the embedding normalisation reads it ("sum"; the same where there is none). Models without absolute positions
    give repeated tokens identical vectors: any of them counts as right, and `strict_rate` counts none of those. A tie
    between different vectors counts as wrong. In float64. `per_token`: a row for each depth and token.

    Errors: InputError for an unknown distance; NotDefined for a cosine of a zero vector, for a text whose tokens all
    have the same vector, or where token vectors and hidden states differ in width (embedding="sum" in ELECTRA and
    ALBERT).
    """
    if distance not in ("cosine", "l2"):
        raise InputError("token_identifiability_naive: distance", got=repr(distance), allowed="'cosine', 'l2'")
    part = trace.part()
    candidates = trace.model.from_embedding(trace, embedding)[0]
    if candidates.shape[-1] != part.hidden.shape[-1]:
        raise NotDefined(
            "token_identifiability_naive: token vectors and hidden states differ in width",
            got=f"{candidates.shape[-1]} and {part.hidden.shape[-1]}",
            do="Use embedding='output'.",
        )
    found = linalg.nearest_candidates(part.hidden, candidates, distance)
    options = {"distance": distance, "embedding": embedding, "per_token": per_token}
    meta = origin_of(trace, "token_identifiability_naive", options)
    strict = found.right & found.alone
    depths, tokens = found.right.shape
    columns: dict[str, Any]
    if per_token:
        columns = {
            "depth": [depth for depth in range(depths) for _ in range(tokens)],
            "token": list(range(tokens)) * depths,
            "piece": list(part.queries.pieces) * depths,
            "nearest": found.nearest.flatten().tolist(),
            "margin": found.margin.flatten().tolist(),
            "right": found.right.flatten().tolist(),
            "strict": strict.flatten().tolist(),
        }
        return Table(columns, about=ABOUT_TOKEN, meta=meta)
    columns = {
        "depth": list(range(depths)),
        "tokens": [tokens] * depths,
        "identical": [int((~found.alone).sum())] * depths,
        "rate": found.right.double().mean(-1).tolist(),
        "strict_rate": strict.double().mean(-1).tolist(),
    }
    return Table(columns, about=ABOUT, meta=meta)
