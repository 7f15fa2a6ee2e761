"""What the page is told: the findings of one trace as one plain payload of JSON types, the same for every door.

Exact figures (verdicts, certificate, curves) are numbers; the large maps are packed (`packing.py`) within a budget:
16 bits a value, else 8, else the mean over heads in place of every head; the payload says so in `notices`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clearhead import __version__
from clearhead.explorer.charts import curves_of
from clearhead.explorer.findings import Findings
from clearhead.explorer.packing import Bits, magnitude, pack, text_size
from clearhead.explorer.verdicts import farthest, scientific, verdicts
from clearhead.maps import Map
from clearhead.methods.registry import find
from clearhead.tokens import Tokens

BUDGET = 24_000_000
"""Characters of packed arrays in a payload, so that a report stays under 25 MB."""
FINE = 6_000_000
"""Up to this size arrays are packed with 16 bits a value; beyond, with 8."""
CITE_BRUNNER = r"""
@inproceedings{brunner2020identifiability,
  title = {On Identifiability in Transformers},
  author = {Brunner, Gino and Liu, Yang and Pascual, Dami{\'a}n and
            Richter, Oliver and Ciaramita, Massimiliano and Wattenhofer, Roger},
  booktitle = {International Conference on Learning Representations},
  year = {2020},
  url = {https://arxiv.org/abs/1908.04211}
}"""
CITE_CLEARHEAD = f"""
@software{{clearhead,
  title = {{clearhead: what attention in a transformer can and cannot tell you}},
  author = {{The clearhead authors}},
  version = {{{__version__}}}
}}"""


def payload(findings: Findings) -> dict[str, Any]:
    """Everything that the page shows."""
    trace = findings.trace
    origin = dict(trace.model.origin)
    layers, heads, n, _ = findings.raw.values.shape
    notices = [*(f"Warning of the trace: {text}" for text in trace.warnings), *findings.notices]
    contribution = None if findings.contribution is None else contribution_of(findings.contribution)
    attention = attention_of(findings, BUDGET - packed_size(contribution), notices)
    texts = [trace.tokens.text] + ([] if trace.tokens.pair is None else [trace.tokens.pair])
    line = f"{origin['model']} · {origin['family']} · {layers} layers of {heads} heads · {n} tokens · {origin['dtype']}"
    return {
        "text": texts,
        "tokens": tokens_of(trace.tokens),
        "model": {"name": origin["model"], "line": line},
        "notices": notices,
        "verdicts": [{"sentence": one.sentence, "meaning": one.meaning} for one in verdicts(findings)],
        "start": start_of(findings),
        "overview": overview_of(findings),
        "attention": attention,
        "contribution": contribution,
        "depth": curves_of(findings),
        "certificate": certificate_of(findings),
        "proof": proof_of(findings),
        "methods": methods_of(findings),
        "origin": origin_of(findings),
        "cite": [
            {"plain": "The software that made this report.", "bibtex": CITE_CLEARHEAD.strip()},
            {"plain": "Its methods: identifiability, Hidden Token Attribution.", "bibtex": CITE_BRUNNER.strip()},
        ],
        "footer": f"Made by clearhead {__version__}. The page holds all that it shows and asks nothing of any network.",
    }


def tokens_of(tokens: Tokens) -> list[dict[str, Any]]:
    """Each token as it is shown, and whether white space or a line break stands before it in the text."""
    shown: list[dict[str, Any]] = []
    texts = (tokens.text, tokens.pair or "")
    reached = [0, 0]
    ids = tokens.ids or (None,) * len(tokens)
    for i, (label, piece, span, segment, origin) in enumerate(
        zip(tokens.labels, tokens.pieces, tokens.spans, tokens.segments, tokens.origin, strict=True)
    ):
        gap = ""
        if span is not None:
            under = texts[segment][span[0] : span[1]]
            gap = texts[segment][reached[segment] : span[0]] + under[: len(under) - len(under.lstrip())]
            reached[segment] = max(reached[segment], span[1])
        about = f"token {i}: piece {piece!r}" + ("" if ids[i] is None else f", id {ids[i]}")
        breaks, space = "\n" in gap, bool(gap) and not gap.strip()
        shown.append({"shown": label, "origin": origin, "space": space, "breaks": breaks, "about": about})
    return shown


def attention_of(findings: Findings, budget: int, notices: list[str]) -> dict[str, Any]:
    """Raw and effective attention within a budget of characters: every head, else the mean over heads, else neither."""
    raw, effective = findings.raw.values, findings.effective.values
    heads = raw.shape[1]
    visible = [
        None if layer.visible.everything else {"start": layer.visible.start, "stop": layer.visible.stop}
        for layer in findings.trace.layers
    ]
    both = pack_both(raw, effective, budget)
    if both is not None:
        return {"raw": both[0], "effective": both[1], "mean_of": None, "visible": visible}
    size = f"{BUDGET / 1e6:.0f} MB"
    both = pack_both(raw.mean(axis=1, keepdims=True), effective.mean(axis=1, keepdims=True), budget)
    if both is not None:
        notices.append(
            f"The heat maps show the mean of the {heads} heads of a layer: every head would need more than {size}. "
            "Verdicts, overview and certificate are of every head. The numbers of every head: `clearhead map`."
        )
        return {"raw": both[0], "effective": both[1], "mean_of": heads, "visible": visible}
    notices.append(f"The heat maps are left out: they would need more than {size}. The numbers: `clearhead map`.")
    return {"raw": None, "effective": None, "mean_of": None, "visible": visible}


def pack_both(raw: np.ndarray, effective: np.ndarray, budget: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Both maps with the same bits and steps (where they are equal, their difference is 0); None where 8 bits need more
    than the budget."""
    largest = np.maximum(magnitude(raw), magnitude(effective))
    attempts: tuple[tuple[Bits, int], ...] = ((16, min(FINE, budget)), (8, budget))
    for bits, limit in attempts:
        first = pack(raw, bits, largest=largest, limit=limit)
        second = first and pack(effective, bits, largest=largest, limit=limit - text_size(first))
        if first and second:
            return first, second
    return None


def contribution_of(contribution: Map) -> dict[str, Any]:
    """Contributions and their standard errors."""
    sentence = "How strongly each input token moves this token's state: Hidden Token Attribution, shares of 100 %."
    if contribution.stderr is not None:
        probes = contribution.meta["options"]["probes"]
        sentence += f" Estimated from {probes} random probes a token; ± is the standard error."
    else:
        sentence += " Exact."
    return {
        "lead": sentence,
        "values": pack(contribution.values, 16, limit=FINE) or pack(contribution.values, 8),
        "stderr": None if contribution.stderr is None else pack(contribution.stderr, 8),
    }


def packed_size(contribution: dict[str, Any] | None) -> int:
    """Characters that the contributions take."""
    return sum(text_size(one) for one in (contribution or {}).values() if isinstance(one, dict))


def start_of(findings: Findings) -> dict[str, int]:
    """Selected at first: the row of a text token that can move farthest, else the first text token in the middle."""
    origins = findings.trace.tokens.origin
    moved = [one for one in findings.moved if origins[one.meta["options"]["query"]] == "text"] or findings.moved
    if moved:
        where = farthest(moved).meta["options"]
        return {name: where[name] for name in ("layer", "head", "query")}
    query = origins.index("text") if "text" in origins else 0
    return {"layer": findings.raw.values.shape[0] // 2, "head": 0, "query": query}


def overview_of(findings: Findings) -> dict[str, Any]:
    """The certificate as grids [layer][head], with the null-space share of each head."""
    table, shape = findings.certificate, findings.null_share.shape
    order = np.lexsort((table["head"], table["layer"]))
    if len(table) != shape[0] * shape[1]:
        raise ValueError(f"the certificate has {len(table)} lines for {shape[0]} layers of {shape[1]} heads")
    columns = ("verdict", "rank", "keys", "d_v", "nullity", "nullity_row_sum")
    grids = {name: table[name][order].reshape(shape).tolist() for name in columns}
    return {"share": findings.null_share.tolist(), **grids}


def certificate_of(findings: Findings) -> dict[str, Any]:
    """The certificate's columns, the verdict and the null-space share before the ranks."""
    table = findings.certificate
    columns = {name: table[name].tolist() for name in ("layer", "head", "verdict")}
    columns["null_space_share"] = findings.null_share[table["layer"], table["head"]].tolist()
    columns |= {name: column.tolist() for name, column in table.columns.items() if name not in columns}
    if columns.get("kv_head") == columns["head"]:
        del columns["kv_head"]  # no groups: it says nothing
    about = {**table.about, "null_space_share": "||A - A_eff||^2 / ||A||^2 over all queries of the head"}
    return {"columns": columns, "about": about}


def proof_of(findings: Findings) -> dict[str, Any]:
    """The proof of the capture, in words and by layer."""
    proof = findings.trace.proof
    compared = proof.compared
    untouched = "; the hidden states were compared with an untouched forward pass of the model as well"
    sentence = (
        "Every layer's attention output was rebuilt from the captured attention, values and output projection and "
        f"compared with the model's own{'' if compared is None else untouched}. The largest relative difference is "
        f"{scientific(proof.worst)}; beyond {scientific(proof.tolerance)} there would be no report."
    )
    pairs = [
        ["largest error", f"{proof.worst:.2e} (relative)"],
        ["tolerance", f"{proof.tolerance:.2e}, from the precision"],
        ["precision", f"{proof.precision}, the lowest on the path"],
        ["attention calls", str(proof.calls)],
        ["situation", proof.situation],
    ]
    layers: dict[str, list[Any]] = {
        "layer": list(range(len(proof.rebuilt))),
        "attention output rebuilt, relative error": list(proof.rebuilt),
        "largest error of a row sum": list(proof.row_sum_error),
    }
    if compared is not None:
        layers["state after it, against an untouched pass"] = list(compared[1:])
    return {"kind": proof.kind, "sentence": sentence, "pairs": pairs, "layers": layers}


def methods_of(findings: Findings) -> list[dict[str, str]]:
    """Every method that the page shows, with its summary, paper and options."""
    options: dict[str, dict[str, Any]] = {
        one.meta["method"]: one.meta["options"]
        for one in (findings.effective, findings.certificate, findings.naive, findings.contribution)
        if one is not None
    }
    if findings.moved:
        given = findings.moved[0].meta["options"]
        options["farthest_attention"] = {
            name: value for name, value in given.items() if name not in ("layer", "head", "query")
        }
    used = [(find(name), given) for name, given in options.items()]
    return [
        {
            "name": method.name,
            "summary": method.summary + ".",
            "paper": method.paper,
            "options": ", ".join(f"{key} = {value}" for key, value in given.items()),
        }
        for method, given in used
    ]


def origin_of(findings: Findings) -> list[list[str]]:
    """Model, revision, text and versions: what is needed to make these numbers again."""
    origin = findings.trace.model.origin
    meta = findings.effective.meta
    pairs = [[name, str(origin[name])] for name in ("model", "revision", "family", "dtype") if name in origin]
    pairs.append(["sha256 of the text", str(meta["text_sha256"])])
    if findings.contribution is not None:
        pairs.append(["seed", str(findings.contribution.meta.get("seed"))])
    pairs.append(["versions", ", ".join(f"{name} {version}" for name, version in origin["versions"].items())])
    return pairs
