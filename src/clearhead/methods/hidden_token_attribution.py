"""Hidden Token Attribution: how much each input token contributes to each hidden state."""

from __future__ import annotations

from typing import Literal

from clearhead import linalg
from clearhead.errors import InputError, ProofError
from clearhead.maps import Map
from clearhead.methods.registry import method, origin_of
from clearhead.progress import report
from clearhead.trace import Embedding, Trace


@method(
    paper="Brunner et al. 2020, On Identifiability in Transformers (arXiv 1908.04211), section 5",
    dims=("layer", "query", "key"),
    unit="share of the row's norms",
    laws=("rows sum to 1", "non-negative", "causal"),
    cost="exact: layers x tokens passes back or forward; with probes: so many passes a layer",
    can="How strongly each state changes with each input token, everything in between included.",
    cannot=(
        "The sign or the effect of removing a token: it is a derivative, of the norm of a Jacobian, at this one text."
    ),
)
def hidden_token_attribution(
    trace: Trace,
    *,
    probes: int | None = 16,
    norm: Literal["frobenius", "spectral"] = "frobenius",
    embedding: Embedding = "output",
    seed: int = 0,
    debias: bool = False,
) -> Map:
    """Relative contribution of each input token to each hidden state, from the Jacobian between them.

    c_ij = ||J_ij|| / sum_k ||J_ik||, J_ij = d (state of query i after the layer) / d x_j; rows sum to 1 over the keys.
    `embedding`: x as the first block reads it ("output") or as the embedding normalisation reads it ("sum"; the same
    where there is none). The state is that of the residual stream, before any final normalisation.

    `probes=None` is exact: width * tokens tangents pushed forward. With `probes=k` k random orthogonal tangents a
    token, drawn from `seed`, estimate ||J_ij||_F^2 without bias; there are no more than the width of x of them, and so
    many are exact again (`meta` has the number used). `stderr` is the jackknife over probes, with the factor for
    drawing without replacement and Student's factor for few probes, so that c +- 2 stderr holds the truth in about
    95 % of cases (`linalg.jackknife`); it says nothing about rounding. c itself, a ratio of square roots, keeps a bias
    of order 1 / k; `debias` subtracts the jackknife's estimate of it, worth it for means over many texts, where the
    errors of single values average out.

    `norm="spectral"` takes the largest singular value of every block: exact by singular value decomposition, or, with
    `probes=k`, by power iteration of that width on the exact blocks, to within 1e-6 of it; no stderr.

    Errors: InputError for an option out of its range; NotDefined where a row has no influence at all, where a
    derivative is not finite in the model's precision, or where power iteration does not settle; ProofError where
    running the model from its token vectors does not give the hidden states of the trace.
    """
    _check(probes, norm, seed, debias)
    part = trace.part()
    x, f = trace.model.from_embedding(trace, embedding)
    width = x.shape[1]
    probes = None if probes is None else min(probes, width)
    _prove(trace, linalg.disagreement(f, x, part.hidden[1:]).tolist())
    start = None if probes is None else linalg.orthogonal_probes(probes, width, seed)
    stderr = None
    if norm == "spectral":
        values = linalg.contributions(linalg.spectral_norms(f, x, start, progress=report))
    elif start is None:
        values = linalg.contributions(linalg.squared_norms(f, x, progress=report).sqrt())
    else:
        samples = linalg.sampled_norms(f, x, start, progress=report)
        values, stderr, bias = linalg.jackknife(samples, width)
        values = values - bias if debias else values
    options = {"probes": probes, "norm": norm, "embedding": embedding, "seed": seed, "debias": debias}
    meta = origin_of(trace, "hidden_token_attribution", options)
    if stderr is not None:
        meta["stderr"] = "jackknife over probes, scaled so that 2 stderr hold 95 % (Student's factor included)"
    return Map(
        values.cpu().numpy(),
        ("layer", "query", "key"),
        tokens={"query": part.queries, "key": part.keys},
        unit="share of the row's norms",
        meta=meta,
        stderr=None if stderr is None else stderr.cpu().numpy(),
    )


def _check(probes: int | None, norm: str, seed: int, debias: bool) -> None:
    name = "hidden_token_attribution"
    if probes is not None and (type(probes) is not int or probes < 2):
        do = "One probe has no standard error; None is exact."
        raise InputError(f"{name}: probes", got=repr(probes), allowed="None, or a whole number from 2", do=do)
    if norm not in ("frobenius", "spectral"):
        raise InputError(f"{name}: norm", got=repr(norm), allowed="'frobenius', 'spectral'")
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise InputError(f"{name}: seed", got=repr(seed), allowed="a whole number from 0 to 2^63 - 1")
    if debias and (probes is None or norm == "spectral"):
        raise InputError(f"{name}: debias", got="an exact norm", allowed="an estimate: norm='frobenius', probes=k")


def _prove(trace: Trace, errors: list[float]) -> None:
    """Errors: ProofError where f(x) is not the trace's own states (entered at the wrong place, a lost mask, ...).

    Tolerance: that of two passes of the model, 3 sqrt(l + 2) times that of one layer, as in the proof of a trace.
    """
    for layer, error in enumerate(errors):
        allowed = 3 * trace.proof.tolerance * (layer + 2) ** 0.5
        if not error <= allowed:
            raise ProofError(
                f"hidden_token_attribution: layer {layer}, run from the token vectors, differs from the trace",
                got=f"relative error {error:.1e}",
                allowed=f"at most {allowed:.1e}",
                do="These contributions would be wrong, so none are shown; please report the model and its versions.",
            )
