"""What the page is told: the findings of one trace as one plain payload of JSON types, the same for every door.

Exact figures (verdicts, certificate, curves) are numbers; the large maps are told by `maps_told.py`.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from clearhead import __version__
from clearhead.engine import choices, option_types, spell, typed
from clearhead.explorer.catalogue import pickable
from clearhead.explorer.charts import curves_of
from clearhead.explorer.findings import Findings
from clearhead.explorer.maps_told import told_maps
from clearhead.explorer.packing import pack
from clearhead.explorer.querykey import points
from clearhead.explorer.verdicts import farthest, scientific, verdicts
from clearhead.faithfulness.result import Comparison
from clearhead.maps import Table
from clearhead.methods.registry import Method, find
from clearhead.tokens import Tokens

THUMB = 24
"""Most pixels along a side of the small picture of a head."""
FAITHFULNESS = (
    "method", "score", "over_random", "over_random_low", "over_random_high", "beats_random", "deletion", "insertion",
    "leave_one_out", "seconds",
)  # fmt: skip
"""The columns of a comparison that the page shows, as far as it has them."""
KEYS = {"hidden_token_attribution": "contribution", "effective_attention": "effective"}
"""What the maps of methods are called that every page holds."""
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


def payload(findings: Findings, *, remote: bool = False) -> dict[str, Any]:
    """Everything that the page shows. `remote`: without the numbers of the large maps, which the page will ask for."""
    trace = findings.trace
    origin = dict(trace.model.origin)
    layers, heads, n, _ = findings.raw.values.shape
    notices = [*(f"Warning of the trace: {text}" for text in trace.warnings), *findings.notices]
    maps = told_maps(findings, notices, remote=remote)
    texts = [trace.tokens.text] + ([] if trace.tokens.pair is None else [trace.tokens.pair])
    line = f"{origin['model']} · {origin['family']} · {layers} layers of {heads} heads · {n} tokens · {origin['dtype']}"
    return {
        "text": texts,
        "tokens": tokens_of(trace.tokens),
        "words": words_of(trace.tokens),
        "model": {"name": origin["model"], "line": line},
        "notices": notices,
        "verdicts": [{"sentence": one.sentence, "meaning": one.meaning} for one in verdicts(findings)],
        "start": start_of(findings),
        "overview": overview_of(findings),
        "thumbs": thumbs_of(findings),
        "visible": [
            None if layer.visible.everything else {"start": layer.visible.start, "stop": layer.visible.stop}
            for layer in trace.layers
        ],
        "maps": maps,
        "options": {name: options_of(one) for name, one in pickable().items()} if remote else None,
        "nearest": None if findings.nearest is None else nearest_of(findings.nearest, n),
        "points": points_of(findings),
        "faithfulness": None if findings.comparison is None else faithfulness_of(findings.comparison),
        "depth": curves_of(findings),
        "certificate": certificate_of(findings),
        "proof": proof_of(findings),
        "methods": methods_of(findings),
        "origin": origin_of(findings),
        "cite": [
            {"plain": "The software that made this page.", "bibtex": CITE_CLEARHEAD.strip()},
            {"plain": "Its methods: identifiability, Hidden Token Attribution.", "bibtex": CITE_BRUNNER.strip()},
        ],
        "footer": f"Made by clearhead {__version__}. The page asks nothing of any other machine.",
    }


def options_of(method: Method) -> list[dict[str, Any]]:
    """The options of a method as a form needs them: name, default and what is allowed, as texts."""
    kinds = option_types(method)
    return [
        {"name": name, "standard": typed(option.default), "choices": choices(kinds[name]),
         "allowed": spell(kinds[name])}
        for name, option in method.options.items()
    ]  # fmt: skip


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


def words_of(tokens: Tokens) -> list[dict[str, Any]]:
    """The words as entries of their own (`Tokens.by_word`): how each is shown, and the share of each piece in it."""
    entries, weights = tokens.by_word()
    told = tokens_of(entries)
    for row, one in enumerate(told):
        own = slice(weights.indptr[row], weights.indptr[row + 1])
        one["pieces"] = [
            [int(piece), float(weight)] for piece, weight in zip(weights.indices[own], weights.data[own], strict=True)
        ]
        one["about"] = f"{one['shown']}: {len(one['pieces'])} pieces" if len(one["pieces"]) > 1 else one["shown"]
    return told


def thumbs_of(findings: Findings) -> dict[str, Any]:
    """Small pictures of every head: raw and effective weights, the largest magnitude in each block, by row maximum."""
    n = findings.raw.values.shape[-1]
    side = min(n, THUMB)
    edges = np.linspace(0, n, side + 1).astype(int)[:-1]
    told: dict[str, Any] = {"side": side}
    most = np.maximum(*(np.abs(one.values).max(axis=-1, keepdims=True) for one in (findings.raw, findings.effective)))
    for name, one in (("raw", findings.raw), ("effective", findings.effective)):
        signed = one.values / np.where(most > 0, most, 1)
        high, low = (
            function.reduceat(function.reduceat(signed, edges, axis=-1), edges, axis=-2)
            for function in (np.maximum, np.minimum)
        )
        pooled = np.where(-low > high, low, high)
        told[name] = base64.b64encode(np.rint(127 * pooled).astype(np.int8).tobytes()).decode("ascii")
    return told


def nearest_of(table: Table, n: int) -> list[list[int]]:
    """[depth][token]: position of the token vector that is nearest to the state."""
    return table["nearest"].reshape(-1, n).tolist()


def points_of(findings: Findings) -> dict[str, Any] | None:
    """The joint query-key map of every head by PCA; None where the trace holds no queries."""
    layers = findings.trace.layers
    if any(layer.query is None or layer.key is None for layer in layers):
        return None
    found = [[points(layer, head) for head in range(findings.raw.values.shape[1])] for layer in layers]
    at = np.array([[one.at.reshape(-1, 2) for one in row] for row in found])
    norms = np.array([[one.norms for one in row] for row in found])
    return {
        "at": pack(at, 16),
        "norms": pack(norms, 8),
        "scale": [[one.scale for one in row] for row in found],
        "agreement": [[one.agreement for one in row] for row in found],
        "kept": [[one.kept for one in row] for row in found],
    }


def faithfulness_of(comparison: Comparison) -> dict[str, Any]:
    """A line a method, the most faithful first, with the key of its map, and the score of random orders."""
    table = comparison.table
    texts = int(table.meta["texts"])
    names = [name for name in FAITHFULNESS if name in table.columns and (texts > 1 or name != "beats_random")]
    rows = [dict(zip(names, line, strict=True)) for line in zip(*(table[name].tolist() for name in names), strict=True)]
    random = next(row["score"] for row in rows if row["method"] == "random")
    return {
        "columns": names,
        "about": {name: table.about[name] for name in names},
        "rows": [{**row, "key": KEYS.get(row["method"], row["method"])} for row in rows],
        "random": random,
        "asked": f"{table.meta['target']}; removal: {table.meta['removal']}; "
        + ("this text alone, so no intervals" if texts == 1 else f"{texts} texts"),
        "left_out": [f"{name}: {why}" for name, why in table.meta["left_out"].items()],
    }


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
    """The certificate as grids [layer][head], with the null-space share and the distance of each head."""
    table, shape = findings.certificate, findings.null_share.shape
    order = np.lexsort((table["head"], table["layer"]))
    if len(table) != shape[0] * shape[1]:
        raise ValueError(f"the certificate has {len(table)} lines for {shape[0]} layers of {shape[1]} heads")
    columns = ("verdict", "rank", "keys", "d_v", "nullity", "nullity_row_sum")
    grids = {name: table[name][order].reshape(shape).tolist() for name in columns}
    distance = [[None if np.isnan(one) else one for one in row] for row in findings.distance.tolist()]
    return {"share": findings.null_share.tolist(), "distance": distance, **grids}


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
        for one in (
            findings.effective,
            findings.certificate,
            findings.naive,
            findings.contribution,
            *findings.extra.values(),
        )
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
