"""`clearhead corpus ...`: parse, call, show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Many texts into a directory of Parquet files; a run that dies goes on where it was.",
                  add_completion=False, rich_markup_mode=None, no_args_is_help=True)  # fmt: skip
SOME_FAILED = 3
"""Exit code of a run that is complete, with documents that failed."""
Output = Annotated[Path, typer.Option("--output", "-o", help="The directory; a run that died goes on there.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A directory of a corpus run.")]


@app.command()
def run(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help='A text a line, .csv, .tsv, .jsonl, .parquet (also .gz, .zst), a folder of .txt files, "-", '
            "or hf:name[,config]:split:column.",
        ),
    ],
    output: Output,
    model: Annotated[str, typer.Option("--model", "-m", help='A hub id, a folder, a .gguf file, or "demo".')] = "demo",
    methods: Annotated[
        str, typer.Option("--methods", help="Names parted by commas; options as alti:variant=published.")
    ] = "effective_attention",
    column: Annotated[str | None, typer.Option("--column", help="The column that holds the text.")] = None,
    pair_column: Annotated[str | None, typer.Option("--pair-column", help="The column of the second text.")] = None,
    granularity: Annotated[
        str, typer.Option("--granularity", help="What is kept: maps, top, summary or statistics.")
    ] = "summary",
    top: Annotated[int, typer.Option("--top", min=1, help="Keys of each query, for --granularity top.")] = 8,
    mean_heads: Annotated[bool, typer.Option("--mean-heads", help="Keep means over heads, not each head.")] = False,
    engine: Annotated[str, typer.Option("--engine", help="local or ray.")] = "local",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Workers, each with its own model.")] = 1,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of each worker.")] = 1,
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", min=1, help="Most tokens of one pass, padding counted.")
    ] = 1024,
    shard_documents: Annotated[
        int, typer.Option("--shard-documents", min=1, help="Documents stored, and redone, together.")
    ] = 128,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first documents only.")] = None,
    max_errors: Annotated[
        int | None, typer.Option("--max-errors", min=0, help="Stop once more documents failed [default: never].")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Of the weights, such as float64.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of methods that draw numbers.")] = 0,
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", help="A Ray cluster that runs already [default: one is started].")
    ] = None,
    gpus_per_worker: Annotated[
        float, typer.Option("--gpus-per-worker", min=0, help="GPUs of each worker, with --engine ray.")
    ] = 0.0,
) -> None:
    """Apply methods to every document of INPUT; what the directory has already is not done again."""
    from clearhead.corpus.run import run_corpus

    counts = run_corpus(
        source, output, model=model, methods=methods, column=column, pair_column=pair_column, granularity=granularity,
        top=top, heads=not mean_heads, engine=engine, workers=workers, threads=threads, batch_tokens=batch_tokens,
        shard_documents=shard_documents, limit=limit, max_errors=max_errors, dtype=dtype, seed=seed,
        ray_address=ray_address, gpus_per_worker=gpus_per_worker, progress=True,
    ).manifest["counts"]  # fmt: skip
    good = counts["documents"] - counts["failed"]
    line = f"{output}: {good:,} of {counts['documents']:,} documents, {counts['tokens']:,} tokens"
    if not counts["failed"]:
        typer.echo(f"Done: {line}")
        return
    typer.echo(f"Done, with errors: {line}; {counts['failed']:,} failed, see {output / 'errors.parquet'}")
    raise typer.Exit(SOME_FAILED)


@app.command()
def status(directory: Directory) -> None:
    """Say what a directory holds: model, methods, documents, errors, and whether it is complete."""
    from clearhead.corpus.status import status

    typer.echo(status(directory))


@app.command()
def merge(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Complete directories of the same model and settings.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new directory.")],
) -> None:
    """Put complete directories together into one; documents are numbered on, in the order given."""
    from clearhead.corpus.merge import merge

    found = merge(directories, output)
    typer.echo(f"Wrote {output}: {found.manifest['counts']['documents']:,} documents")


@app.command()
def report(
    directory: Directory,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("corpus.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file where it exists.")] = False,
) -> None:
    """Draw a complete directory's curves over the layers: one HTML file, without a network."""
    from clearhead.corpus.report import write_report

    write_report(directory, output, overwrite=overwrite)
    typer.echo(f"Wrote {output}")
