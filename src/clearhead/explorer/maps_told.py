"""The large maps as the page is told of them: what each is called, its unit, and its numbers.

In a file they are packed (`packing.py`) within a budget: 16 bits a value, else 8, else the mean over heads in place of
every head; what was dropped is said in the notices. For a server or a notebook (`remote`) only their shape and largest
values are told, and the page asks for a head or a row when it is shown.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clearhead.explorer.catalogue import pickable, title_of, why_not
from clearhead.explorer.findings import Findings
from clearhead.explorer.packing import Bits, magnitude, pack, text_size
from clearhead.maps import Map

BUDGET = 24_000_000
"""Characters of packed arrays in a payload, so that a report stays under 25 MB."""
FINE = 6_000_000
"""Up to this size arrays are packed with 16 bits a value; beyond, with 8."""
NOT_HERE = "not in this file: `clearhead report --with {name}` puts it in; `clearhead serve` computes it when asked"


def told_maps(findings: Findings, notices: list[str], *, remote: bool) -> list[dict[str, Any]]:
    """Every map that the page can be asked for, those of the findings first."""
    contribution = None if findings.contribution is None else contribution_told(findings.contribution, remote)
    left = BUDGET - (0 if remote or contribution is None else packed_size(contribution))
    raw, effective, mean_of = attention_told(findings, left, notices, remote)
    null = {"of": ["raw", "effective"]} if raw else None
    missing = None if raw else "left out of this file: too long a text"
    told = [] if contribution is None else [contribution]
    told += [
        entry("raw", "Raw attention", findings.raw, raw, missing, mean_of, note="the weights of the softmax"),
        entry(
            "effective", "Effective attention", findings.effective, effective, missing, mean_of,
            note="the part that reaches the head's output",
        ),
        entry(
            "null", "Null-space part", findings.effective, null, missing, mean_of,
            note="raw − effective: no effect on the output",
        ) | {"signed": True},
    ]  # fmt: skip
    left -= sum(packed_size(one) for one in told[-3:-1])
    for name, extra in findings.extra.items():
        one = extra_told(name, extra, left, notices, remote)
        left -= packed_size(one)
        told.append(one)
    shown = {one["method"] for one in told}
    for name, method in pickable().items():
        if name not in shown:
            why = why_not(method) or (None if remote else NOT_HERE.format(name=name))
            told.append(
                {"key": name, "title": title_of(name), "note": method.summary, "method": name, "unit": method.unit,
                 "heads": "head" in method.dims, "values": None, "reason": why, "compute": why is None}
            )  # fmt: skip
    return told


def entry(
    key: str, title: str, of: Map, values: dict[str, Any] | None, reason: str | None, mean_of: int | None, *, note: str
) -> dict[str, Any]:
    """One map: `values` packed or remote, `reason` where there are none."""
    return {
        "key": key, "title": title, "note": note, "method": of.meta["method"], "unit": of.unit,
        "options": of.meta["options"], "heads": "head" in of.dims, "mean_of": mean_of, "values": values,
        "reason": reason, "signed": bool((of.values < 0).any()), "share": is_share(of),
    }  # fmt: skip


def is_share(of: Map) -> bool:
    """Whether the unit is a share of a whole, to be read in per cent."""
    return of.unit.startswith("share")


def remote_values(of: Map) -> dict[str, Any]:
    """Shape and largest magnitudes of a map whose numbers are asked for later."""
    return {"shape": list(of.values.shape), "largest": magnitude(of.values).tolist()}


def extra_told(key: str, of: Map, budget: int, notices: list[str], remote: bool) -> dict[str, Any]:
    """A map of any pickable method, with its standard error where it has one."""
    title = title_of(of.meta["method"])
    note = pickable()[of.meta["method"]].summary
    if remote:
        told = entry(key, title, of, remote_values(of), None, None, note=note)
        return told | {"stderr": None if of.stderr is None else {"shape": list(of.stderr.shape), "largest": None}}
    values, mean_of = packed_or_mean(of.values, budget)
    reason = None
    if values is None:
        reason = "left out of this file: it needs more room than is left"
        notices.append(f"{title} is {reason}.")
    elif mean_of:
        notices.append(
            f"{title} is the mean of the {mean_of} heads of a layer: every head needs more room than is left."
        )
    return entry(key, title, of, values, reason, mean_of, note=note)


def packed_or_mean(values: np.ndarray, budget: int) -> tuple[dict[str, Any] | None, int | None]:
    """(packed, heads that were averaged or None)."""
    attempts: list[tuple[np.ndarray, Bits, int, int | None]] = [
        (values, 16, min(FINE, budget), None), (values, 8, budget, None)
    ]  # fmt: skip
    if values.ndim == 4:
        attempts.append((values.mean(axis=1, keepdims=True), 8, budget, values.shape[1]))
    for array, bits, limit, mean_of in attempts:
        packed = pack(array, bits, limit=limit)
        if packed:
            return packed, mean_of
    return None, None


def attention_told(
    findings: Findings, budget: int, notices: list[str], remote: bool
) -> tuple[dict[str, Any] | None, dict[str, Any] | None, int | None]:
    """(raw, effective, heads averaged): every head, else the mean over heads, else neither."""
    if remote:
        most = np.maximum(magnitude(findings.raw.values), magnitude(findings.effective.values)).tolist()
        shape = list(findings.raw.values.shape)
        return {"shape": shape, "largest": most}, {"shape": shape, "largest": most}, None
    raw, effective = findings.raw.values, findings.effective.values
    heads = raw.shape[1]
    both = pack_both(raw, effective, budget)
    if both is not None:
        return *both, None
    size = f"{BUDGET / 1e6:.0f} MB"
    both = pack_both(raw.mean(axis=1, keepdims=True), effective.mean(axis=1, keepdims=True), budget)
    if both is not None:
        notices.append(
            f"The heat maps show the mean of the {heads} heads of a layer: every head would need more than {size}. "
            "Verdicts, overview and certificate are of every head. The numbers of every head: `clearhead map`."
        )
        return *both, heads
    notices.append(
        f"The heat maps are left out: they would need more than {size}. "
        "`clearhead serve` shows them, a head at a time; the numbers: `clearhead map`."
    )
    return None, None, None


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


def contribution_told(contribution: Map, remote: bool) -> dict[str, Any]:
    """Contributions and their standard errors."""
    note = "how strongly each input token moves this token's state"
    if contribution.stderr is not None:
        note += f"; estimated from {contribution.meta['options']['probes']} random probes a token"
    if remote:
        values, stderr = remote_values(contribution), {"shape": list(contribution.values.shape), "largest": None}
    else:
        values = pack(contribution.values, 16, limit=FINE) or pack(contribution.values, 8)
        stderr = None if contribution.stderr is None else pack(contribution.stderr, 8)
    stderr = None if contribution.stderr is None else stderr
    return entry("contribution", "Contribution", contribution, values, None, None, note=note) | {"stderr": stderr}


def packed_size(told: dict[str, Any]) -> int:
    """Characters that a packed map and its standard error take."""
    parts = (told.get("values"), told.get("stderr"))
    return sum(text_size(one) for one in parts if one and "blocks" in one)
