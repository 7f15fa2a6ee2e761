"""What the page is told, and the file that holds it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import InputError
from clearhead.explorer import charts, data, findings, maps_told, report
from clearhead.explorer.findings import Findings
from clearhead.explorer.packing import magnitude, pack
from clearhead.explorer.verdicts import percent, scientific, verdicts
from clearhead.maps import Table
from clearhead.trace import Visible

# ------------------------------------------------------------------------------------------------ packing


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """What static/codec.js does, in numpy."""
    kind = {8: np.int8, 16: np.int16}[packed["bits"]]
    layers = [np.frombuffer(zlib.decompress(base64.b64decode(block)), kind) for block in packed["blocks"]]
    codes = np.stack(layers).reshape(packed["shape"])
    return codes * np.asarray(packed["largest"])[..., None, None] / packed["levels"]


@given(st.sampled_from([8, 16]), st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6), st.booleans())
def test_packed_values_are_within_half_a_step(bits: Any, seed: int, size: float, heads: bool) -> None:
    shape = (2, 3, 4, 5) if heads else (2, 4, 5)
    values = size * np.random.default_rng(seed).standard_normal(shape)
    packed = pack(values, bits)
    assert packed is not None
    half = np.asarray(packed["largest"])[..., None, None] / packed["levels"] / 2
    assert (np.abs(unpacked(packed) - values) <= half * (1 + 1e-9)).all()  # 1e-9: rounding of the division by the step


def test_zeros_pack_to_zeros_and_equal_values_stay_equal() -> None:
    zeros = np.zeros((2, 3, 3))
    assert (unpacked(pack(zeros, 8) or {}) == 0).all()
    rng = np.random.default_rng(0)
    one = rng.standard_normal((2, 3, 4, 4))
    two = np.where(rng.random(one.shape) < 0.5, one, 9 * one)
    largest = np.maximum(magnitude(one), magnitude(two))
    first, second = (unpacked(pack(values, 8, largest=largest) or {}) for values in (one, two))
    assert ((first == second) | (one != two)).all()


def test_a_limit_is_kept() -> None:
    values = np.random.default_rng(0).standard_normal((3, 20, 20))
    packed = pack(values, 16)
    assert packed is not None
    size = sum(map(len, packed["blocks"]))
    assert pack(values, 16, limit=size) == packed
    assert pack(values, 16, limit=size - 1) is None


# ------------------------------------------------------------------------------------------------ verdicts


def sentences(found: Findings) -> str:
    return "\n".join(one.sentence for one in verdicts(found))


def test_verdicts_where_heads_are_not_identifiable() -> None:
    found = synthetic.findings(tokens=24, layers=4, heads=6, width=8)
    text = sentences(found)
    assert "24 tokens, heads of 8 dimensions: **23 of 24 heads are not identifiable**." in text
    assert "**1 is uncertain**: layer 0, head 1." in text
    raw, effective = found.raw.values, found.effective.values
    share = ((raw - effective) ** 2).sum() / (raw**2).sum()
    assert f"**{100 * share:.0f} %** of the squared norm" in text
    assert "Up to **33 % of a row's weight** can move" in text
    meaning = next(one.meaning for one in verdicts(found) if "row's weight" in one.sentence)
    assert "in 4 of 576 rows" in meaning
    assert "ran out" not in meaning
    assert "raw attention is unique" not in text


def test_verdicts_where_all_heads_are_identifiable() -> None:
    text = sentences(synthetic.findings(tokens=8, width=8))
    assert "**all 24 heads are identifiable**, so raw attention is unique" in text
    assert "Effective attention equals raw attention" in text
    assert "can move" not in text


def test_rows_that_were_not_examined_are_said() -> None:
    found = replace(synthetic.findings(), rows_planned=99)
    assert "(of 99 planned; the time for this ran out)" in "".join(one.meaning for one in verdicts(found))


def test_many_uncertain_heads_are_named_and_counted() -> None:
    found = synthetic.findings()
    columns = {**found.certificate.columns, "verdict": ["uncertain"] * 24}
    unsure = replace(found, certificate=Table(columns, meta=found.certificate.meta, about=found.certificate.about))
    text = sentences(unsure)
    assert "no head is surely not identifiable" in text
    assert "unique" not in text
    assert "**24 are uncertain**: layer 0, head 0; layer 0, head 1; " in text
    assert "and 12 more (see the certificate)" in text


def test_contribution_verdict_against_plain_loops() -> None:
    found = synthetic.findings(tokens=12)
    assert found.contribution is not None
    values = found.contribution.values
    last = [values[-1, j, j] for j in range(12)]
    away = sum(any(values[-1, j, i] > values[-1, j, j] for i in range(12)) for j in range(12)) / 12
    text = sentences(found)
    assert f"**{percent(float(np.median(last)))}** after the last" in text
    assert f"**{percent(away)} of tokens** are not their own" in text


def test_masked_models_say_whose_row_is_judged() -> None:
    assert "last query" in verdicts(synthetic.findings(causal=True))[0].meaning
    assert "last query" not in verdicts(synthetic.findings())[0].meaning


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (1e-6, "under 0.1 %"),
        (0.99999, "over 99.9 %"),
        (0.0449, "4.5 %"),
        (0.0996, "10 %"),
        (0.41, "41 %"),
        (0.996, "99.6 %"),
    ],
)
def test_percent_never_rounds_to_none_or_all(share: float, text: str) -> None:
    assert percent(share) == text


def test_scientific() -> None:
    assert [scientific(x) for x in (4e-9, 1.96e-6, 0.0, 1.0)] == ["4·10⁻⁹", "2·10⁻⁶", "0", "1·10⁰"]


def test_a_window_makes_no_claim_beyond_the_last_query() -> None:
    found = synthetic.findings(tokens=8, width=8)
    n = 8
    layer = replace(found.trace.layers[0], visible=Visible((0, *range(n - 1)), tuple(range(1, n + 1)), n))
    part: Any = SimpleNamespace(layers=(layer,) * 4)
    text = sentences(replace(found, trace=replace(found.trace, parts={"decoder": part})))
    assert "all 24 heads are identifiable at their last query" in text
    assert "unique" not in text


# ------------------------------------------------------------------------------------------------ the payload


def values_of(told: dict[str, Any], key: str) -> Any:
    """The packed values of a map of the payload."""
    return next(one["values"] for one in told["maps"] if one["key"] == key)


def test_the_payload_is_plain_json_and_holds_the_numbers() -> None:
    found = synthetic.findings(tokens=10)
    told = data.payload(found)
    assert json.loads(json.dumps(told, allow_nan=False)) == json.loads(report.data_in_page(told))
    for name, made in (("raw", found.raw), ("effective", found.effective)):
        assert np.abs(unpacked(values_of(told, name)) - made.values).max() < 1e-4
    assert found.contribution is not None
    assert np.abs(unpacked(values_of(told, "contribution")) - found.contribution.values).max() < 1e-4
    assert told["overview"]["share"] == found.null_share.tolist()
    assert told["overview"]["verdict"][0][1] == "uncertain"
    assert told["certificate"]["columns"]["rank"] == found.certificate["rank"].tolist()
    assert told["start"] == {"layer": 3, "head": 3, "query": 3}
    assert told["notices"] == []


def test_the_payload_tells_the_faithfulness_of_methods() -> None:
    from clearhead.faithfulness.result import Comparison

    def comparison(texts: int) -> Comparison:
        columns = {
            "method": ["alti", "hidden_token_attribution", "random"],
            "score": [0.5, 0.25, 0.125],
            "over_random": [0.375, 0.125, None],
            "beats_random": ["open", "yes", None],
            "sanity": [0.1, 0.2, None],
        }
        meta = {"target": "class 1", "removal": "mask", "texts": texts, "left_out": {"decompx": "it is long"}}
        table = Table(columns, about=dict.fromkeys(columns, "what it is"), meta=meta)
        return Comparison(table, table, table)

    found = synthetic.findings()
    assert data.payload(found)["faithfulness"] is None
    told = data.payload(replace(found, comparison=comparison(3)))["faithfulness"]
    assert told["columns"] == ["method", "score", "over_random", "beats_random"]
    assert [(row["key"], row["score"]) for row in told["rows"]] == [
        ("alti", 0.5),
        ("contribution", 0.25),
        ("random", 0.125),
    ]
    assert told["random"] == 0.125
    assert told["asked"] == "class 1; removal: mask; 3 texts"
    assert told["left_out"] == ["decompx: it is long"]
    alone = data.payload(replace(found, comparison=comparison(1)))["faithfulness"]
    assert alone["columns"] == ["method", "score", "over_random"]  # of one text there is no verdict
    assert "no intervals" in alone["asked"]


def test_the_overview_does_not_depend_on_the_order_of_the_certificate() -> None:
    found = synthetic.findings(tokens=10)
    order = np.random.default_rng(0).permutation(24)
    columns = {name: column[order].tolist() for name, column in found.certificate.columns.items()}
    shuffled = replace(found, certificate=Table(columns, meta=found.certificate.meta, about=found.certificate.about))
    assert data.overview_of(shuffled) == data.overview_of(found)


def test_distance_curves_against_plain_loops() -> None:
    found = synthetic.findings(tokens=16)
    assert found.contribution is not None
    values = found.contribution.values
    plain, trend = charts.distance_curves(found.contribution)
    groups = {"1 token away": (1, 1), "2": (2, 2), "3": (3, 3), "4–5": (4, 5), "6–10": (6, 10), "11 or more": (11, 99)}
    assert [one["name"] for one in plain["series"]] == list(groups)
    for share, change, (low, high) in zip(plain["series"], trend["series"], groups.values(), strict=True):
        total = [
            sum(values[layer, j, i] for j in range(16) for i in range(16) if low <= abs(i - j) <= high)
            for layer in range(4)
        ]
        np.testing.assert_allclose(share["values"], np.array(total) / 16, rtol=1e-12)
        np.testing.assert_allclose(change["values"], np.array(total) / sum(total), rtol=1e-12)


def test_groups_of_distances_that_a_short_text_lacks_are_absent() -> None:
    found = synthetic.findings(tokens=4)
    assert found.contribution is not None
    assert [one["name"] for one in charts.distance_curves(found.contribution)[0]["series"]] == [
        "1 token away",
        "2",
        "3",
    ]


def test_detail_is_dropped_with_a_notice_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = synthetic.findings(tokens=24, layers=2, heads=6)
    whole = data.payload(found)
    assert values_of(whole, "raw")["bits"] == 16
    monkeypatch.setattr(maps_told, "FINE", 100)
    assert values_of(data.payload(found), "raw")["bits"] == 8
    monkeypatch.setattr(maps_told, "BUDGET", 12_000)
    told = data.payload(found)
    assert told["maps"][1]["mean_of"] == 6
    assert "mean of the 6 heads" in told["notices"][0]
    mean = found.raw.values.mean(axis=1, keepdims=True)
    half = np.asarray(values_of(told, "raw")["largest"])[..., None, None] / 127 / 2
    assert (np.abs(unpacked(values_of(told, "raw")) - mean) <= half * (1 + 1e-9)).all()
    monkeypatch.setattr(maps_told, "BUDGET", 100)
    told = data.payload(found)
    assert values_of(told, "raw") is None
    assert "left out" in told["notices"][0]
    assert told["verdicts"] == whole["verdicts"]


def test_contributions_that_were_left_out_are_said() -> None:
    found = replace(
        synthetic.findings(contribution=False), notices=("Contributions are left out: as asked (0 probes).",)
    )
    told = data.payload(found)
    assert "contribution" not in {one["key"] for one in told["maps"]}
    assert told["notices"] == ["Contributions are left out: as asked (0 probes)."]
    assert [chart["title"] for chart in told["depth"]] == ["Attention without effect", "Identity"]


def test_tokens_keep_their_gaps() -> None:
    tokens = synthetic.tokens_of(["one", "two"])
    told = data.tokens_of(replace(tokens, text="one\ntwo"))
    assert [one["shown"] for one in told] == ["[CLS]", "one", "two", "[SEP]"]
    assert [one["breaks"] for one in told] == [False, False, True, False]
    assert [one["space"] for one in data.tokens_of(tokens)] == [False, False, True, False]


# ------------------------------------------------------------------------------------------------ the file


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self.current = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self.current = attributes.get("id") or attributes.get("type") or tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self.current = ""

    def handle_data(self, data: str) -> None:
        if self.current:
            self.inside[self.current] = self.inside.get(self.current, "") + data


@pytest.fixture(scope="module")
def hostile() -> str:
    return report.page_of(data.payload(synthetic.findings(words=synthetic.HOSTILE)))


def test_hostile_text_stays_data(hostile: str) -> None:
    page = Page(hostile)
    kinds = [a.get("type") for tag, a in page.elements if tag == "script"]
    assert [kind for kind in kinds if kind != "text/plain"] == ["application/json", None]
    assert re.fullmatch("[A-Za-z0-9+/=]*", page.inside["block-0"])
    assert not {"img", "iframe", "object", "form"} & {tag for tag, _ in page.elements}
    payload = page.inside["payload"]
    assert not re.search("[<>&]", payload)
    shown = [token["shown"] for token in json.loads(payload)["tokens"]]
    assert "<script>window.hacked=1</script>" in shown
    assert "{{payload}}" in shown


def test_the_policy_allows_this_page_and_nothing_else(hostile: str) -> None:
    page = Page(hostile)
    policy = next(
        a["content"] for tag, a in page.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    rules = dict(part.split(" ", 1) for part in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for rule, text in (("script-src", page.inside["script"]), ("style-src", page.inside["style"])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in policy


def test_the_page_names_no_address_to_load(hostile: str) -> None:
    for tag, attributes in Page(hostile).elements:
        assert attributes.get("src") is None, tag
        assert attributes.get("href") in (None, "data:,"), tag
        assert attributes.get("style") is None, tag
    addresses = set(re.findall(r"https?://[^\s\"'\\<}]+", hostile))
    assert addresses <= {"http://www.w3.org/2000/svg", "https://arxiv.org/abs/1908.04211"}


def test_verdicts_can_be_read_without_javascript(hostile: str) -> None:
    noscript = hostile.partition("<noscript>")[2].partition("</noscript>")[0]
    assert "heads are not identifiable" in noscript


def test_modules_are_bundled_after_those_that_they_import() -> None:
    folder = Path(report.__file__).parent / "static"
    every = (*report.MODULES, *report.DOORS)
    assert sorted(every) == sorted(path.name for path in folder.glob("*.js"))
    for position, name in enumerate(every):
        text = (folder / name).read_text("utf-8")
        for imported in re.findall(r'from "\./([\w.]+)"', text):
            assert imported in report.MODULES[:position], f"{name} imports {imported}"
        assert text.count("import ") == len(re.findall(r"^import \{.*\} from", text, re.MULTILINE)), name
    for door in report.DOORS:
        assert not re.search(r"^(import|export) ", report.script_of(door), re.MULTILINE)


def test_a_file_is_never_silently_replaced(tmp_path: Path) -> None:
    told = data.payload(synthetic.findings(tokens=6, layers=1, heads=1))
    path = tmp_path / "report.html"
    assert report.write_report(told, path) == path
    first = path.read_bytes()
    with pytest.raises(InputError, match="exists"):
        report.write_report({**told, "footer": "other"}, path)
    assert path.read_bytes() == first
    report.write_report({**told, "footer": "other"}, path, overwrite=True)
    assert path.read_bytes() != first
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    told = data.payload(synthetic.findings(tokens=6, layers=1, heads=1))
    told["overview"]["share"] = [[float("nan")]]
    with pytest.raises(ValueError, match="JSON"):
        report.write_report(told, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ a real trace


def test_rows_to_move_are_the_least_determined_of_each_head() -> None:
    found = synthetic.findings(tokens=14, layers=3, heads=4, width=5)
    raw, null = found.raw.values, found.raw.values - found.effective.values
    rows = findings.rows_to_move(raw, found.effective.values, found.certificate)
    assert len(rows) == 11  # all but the uncertain one
    assert (0, 1) not in {(layer, head) for layer, head, _ in rows}
    for layer, head, query in rows:
        shares = [(null[layer, head, i] ** 2).sum() / (raw[layer, head, i] ** 2).sum() for i in range(14)]
        assert shares[query] == pytest.approx(max(shares), rel=1e-12)
    assert {layer for layer, _, _ in rows[:3]} == {0, 1, 2}


def test_a_real_trace_gives_a_whole_payload(demo_model: Any) -> None:
    trace = demo_model.trace("the cat sat on the mat because it was warm and " * 4)
    steps: list[str] = []
    found = findings.analyse(trace, probes=2, seconds=0, progress=steps.append)
    assert len(found.moved) == 1  # no time: one row, and the page says so
    assert found.rows_planned == 72
    told = data.payload(found)
    assert "72 of 72 heads are not identifiable" in told["verdicts"][0]["sentence"]
    assert [one["name"] for one in told["methods"]] == [
        "effective_attention", "attention_identifiability", "token_identifiability_naive", "hidden_token_attribution",
        "farthest_attention",
    ]  # fmt: skip
    assert "contributions, from 2 probes a token" in steps
    assert len(report.page_of(told)) < 25e6


def test_probes_follow_the_work(demo_model: Any) -> None:
    short, long = demo_model.trace("Two words."), demo_model.trace("word " * 300)
    assert findings.probes_for(short) == 16
    assert findings.probes_for(long) == 2
