"""Write the generated parts of the documents from the registry of methods and the command line.

docs.py           write them
docs.py --check   write nothing; exit 1 and name those that are not current
"""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path

from clearhead.methods.registry import Method, methods

ROOT = Path(__file__).resolve().parent.parent
PICTURES = "docs/images/methods"
LIST = """The pictures of all pages are of one sentence: "The cat sat on the mat because it was warm."

| method | what it can tell | what it cannot |
|---|---|---|"""
GENERATED = "<!-- written by scripts/docs.py; change the docstrings instead -->\n\n"


def readme() -> str:
    """README.md with its table of methods."""
    head, start, rest = (ROOT / "README.md").read_text("utf-8").partition("<!-- methods -->\n")
    _, end, tail = rest.partition("<!-- /methods -->")
    if not start or not end:
        sys.exit("README.md: the markers <!-- methods --> and <!-- /methods --> are gone; put them back.")
    rows = [f"| [`{m.name}`](docs/methods/{m.name}.md) | {m.summary} | {shape(m)} |" for m in methods().values()]
    return head + start + "\n".join(["| method | what it gives | as |", "|---|---|---|", *rows]) + "\n" + end + tail


def methods_page() -> str:
    """docs/methods.md: the list of all methods."""
    rows = [f"| [{m.name}](methods/{m.name}.md) | {m.can} | {m.cannot} |" for m in methods().values()]
    return GENERATED + "# Methods\n\n" + "\n".join([LIST, *rows]) + "\n"


def command_line_page() -> str:
    """docs/command-line.md: the help of every command, as it prints itself."""
    os.environ.update(TERMINAL_WIDTH="100", COLUMNS="100", NO_COLOR="1", TERM="dumb")
    from typer.main import get_command
    from typer.testing import CliRunner

    from clearhead.cli import app

    names: list[str] = []
    for name, command in getattr(get_command(app), "commands", {}).items():
        names += [name, *(f"{name} {inner}" for inner in getattr(command, "commands", {}))]
    parts = [GENERATED, "# Command line\n"]
    for arguments in [[], *(name.split() for name in names)]:
        result = CliRunner().invoke(app, [*arguments, "--help"], prog_name="clearhead")
        if result.exit_code:
            sys.exit(f"clearhead {' '.join(arguments)} --help failed: {result.output}")
        text = "\n".join(line.rstrip() for line in result.output.strip("\n").splitlines())
        parts.append(f"\n## {' '.join(['clearhead', *arguments])}\n\n```text\n{text.strip()}\n```\n")
    return "".join(parts)


def shape(method: Method) -> str:
    return f"Map ({', '.join(method.dims)})" if method.returns == "map" else "Table"


def method_page(method: Method) -> str:
    """docs/methods/NAME.md: how it is called, what it says of itself, what it can and cannot tell, a picture."""
    _, _, body = (inspect.getdoc(method.function) or "").partition("\n")
    options = ", ".join(name if p.default is p.empty else f"{name}={p.default!r}" for name, p in method.options.items())
    lines = [
        f"# {method.name}",
        "",
        f"`{method.name}(trace{', ' + options if options else ''})` → {shape(method)}",
        "",
        f"{method.summary}.",
        "",
        f"- It can tell: {method.can}",
        f"- It cannot tell: {method.cannot}",
        f"- cost: {method.cost}",
        *(["", "```text", body.strip("\n"), "```"] if body.strip() else []),
        *(["", f"![{method.name}](../images/methods/{method.name}.png)"] if method.returns == "map" else []),
        "",
        f"- unit: {method.unit}",
        *([f"- holds: {'; '.join(method.laws)}"] if method.laws else []),
        f"- paper: {method.paper}",
        "",
    ]
    return GENERATED + "\n".join(lines)


def main() -> None:
    documents = {
        "README.md": readme(),
        "docs/methods.md": methods_page(),
        "docs/command-line.md": command_line_page(),
        **{f"docs/methods/{m.name}.md": method_page(m) for m in methods().values()},
    }
    drawn = [f"{PICTURES}/{m.name}.png" for m in methods().values() if m.returns == "map"]
    if missing := [name for name in drawn if not (ROOT / name).is_file()]:
        print(f"No picture {', '.join(missing)}: run scripts/method_pictures.py.", file=sys.stderr)
        sys.exit("--check" in sys.argv[1:])
    stale = {name: text for name, text in documents.items() if read(ROOT / name) != text}
    if "--check" in sys.argv[1:]:
        if stale:
            sys.exit(f"Not current: {', '.join(stale)}. Run `make docs`.")
        return
    for name, text in stale.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, "utf-8", newline="\n")
        print(name)


def read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


if __name__ == "__main__":
    main()
