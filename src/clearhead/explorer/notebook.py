"""The doors for notebooks: a report that shows itself, and the interactive view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clearhead.errors import InputError, MissingExtra
from clearhead.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clearhead.explorer.report import Report
    from clearhead.explorer.widget import Explorer
    from clearhead.faithfulness.result import Comparison
    from clearhead.target import Target


def report(
    trace: Trace,
    *,
    probes: int | None = None,
    also: Sequence[str] = (),
    target: Target = None,
    comparison: Comparison | None = None,
) -> Report:
    """The report of a trace, as `clearhead report` writes it: it shows itself in a notebook, `save` writes the file.

    `probes`: for the contributions; None by length, 0 leaves them out. `also`: further methods to put into it;
    `target`: what those explain that explain one number. `comparison`: what `clearhead.compare` found, to be shown
    beside the methods.
    Errors: InputError for what is not a trace, and for a method that the page cannot show; those of the methods.
    """
    from clearhead.explorer.findings import analyse
    from clearhead.explorer.report import report_of

    return report_of(analyse(checked("report", trace), probes=probes, also=also, target=target, comparison=comparison))


def explore(trace: Trace, *, probes: int | None = None) -> Explorer:
    """The interactive view of a trace in a notebook: methods, intervals and maps are computed by the kernel when asked.

    `view = ch.explore(trace)`; then `view.token`, `view.head` and `view.layer` are what is selected in it, and setting
    them selects. `probes`: for the contributions; None by length, 0 leaves them out.
    Errors: MissingExtra without anywidget; InputError for what is not a trace; those of the methods.
    """
    checked("explore", trace)
    try:
        from clearhead.explorer.widget import explorer_of
    except ModuleNotFoundError as error:
        if error.name != "anywidget":
            raise
        raise MissingExtra("explore needs anywidget", do="pip install clearhead[explorer]") from error
    return explorer_of(trace, probes)


def checked(name: str, trace: object) -> Trace:
    """Errors: InputError for what is not a trace."""
    if not isinstance(trace, Trace):
        raise InputError(f"{name} needs a trace", got=type(trace).__name__, do="Make one with model.trace(text).")
    return trace
