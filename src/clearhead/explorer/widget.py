"""The page as a notebook widget (anywidget): the same front end, the kernel that holds the trace computes on demand."""

from __future__ import annotations

import re
from typing import Any

import anywidget
import traitlets

from clearhead.errors import ClearheadError, InputError
from clearhead.explorer.report import modules_of, static
from clearhead.explorer.session import Session, add_map, first_page, interval, numbers, query_key
from clearhead.trace import Trace


class Explorer(anywidget.AnyWidget):
    """The interactive view. `layer`, `head` and `token` are what is selected, both ways; `theme` is "auto", "light" or
    "dark". Made by `clearhead.explore`."""

    _esm = modules_of("notebook.js") + "\nexport default { render: $notebook.render };\n"
    layer = traitlets.Int(0, min=0).tag(sync=True)
    head = traitlets.Int(0, min=0).tag(sync=True)
    token = traitlets.Int(0, min=0).tag(sync=True)
    theme = traitlets.Enum(("auto", "light", "dark"), "auto").tag(sync=True)
    _payload = traitlets.Dict().tag(sync=True)
    _style = traitlets.Unicode().tag(sync=True)

    def __init__(self, session: Session, payload: dict[str, Any]) -> None:
        start = payload["start"]
        super().__init__(layer=start["layer"], head=start["head"], token=start["query"])
        self.session = session
        self.set_trait("_style", in_pixels(static("page.css")))
        self.set_trait("_payload", payload)
        self.on_msg(self.answer)

    @property
    def selected(self) -> str:
        """The selected token as a reader sees it."""
        return self.session.trace.tokens.labels[self.token]

    @traitlets.validate("layer", "head", "token")
    def _within(self, proposal: Any) -> int:
        if self._payload:
            overview = self._payload["overview"]["share"]
            counts = {"layer": len(overview), "head": len(overview[0]), "token": len(self._payload["tokens"])}
            name = proposal["trait"].name
            if proposal["value"] >= counts[name]:
                raise InputError(f"explorer: {name}", got=proposal["value"], allowed=f"0 to {counts[name] - 1}")
        return proposal["value"]

    def answer(self, widget: Any, asked: dict[str, Any], buffers: list[bytes]) -> None:
        """Answer one question of the page; an error of clearhead goes to the page, any other is a defect."""
        number = asked.pop("number")
        try:
            told, parts = answer_of(self.session, asked)
        except ClearheadError as error:
            self.send({"answer": number, "error": str(error)})
        except Exception as error:
            self.send({"answer": number, "error": f"A defect of clearhead: {type(error).__name__}: {error}"})
            raise
        else:
            self.send({"answer": number, "told": told}, parts)


def in_pixels(style: str) -> str:
    """Sizes in rem, which would follow the notebook's own root, as pixels."""
    return re.sub(r"(?<![\w.])(\d*\.?\d+)rem\b", lambda size: f"{16 * float(size[1]):g}px", style)


def explorer_of(trace: Trace, probes: int | None) -> Explorer:
    """The widget of a trace."""
    session = Session(trace)
    return Explorer(session, first_page(session, probes=probes, say=lambda step: None))


def answer_of(session: Session, asked: dict[str, Any]) -> tuple[Any, list[bytes]]:
    """(JSON, buffers) of one question. Errors: InputError, and those of the methods."""
    task = asked.pop("task")
    if task == "map":
        return add_map(session, asked["method"], asked.get("options") or {}, say=lambda step: None), []
    if task == "interval":
        return interval(session, **asked), []
    if task == "points":
        return query_key(session, **asked, say=lambda step: None), []
    if task == "numbers":
        made = session.maps[asked["map"]]
        values = made.stderr if asked["part"] == "stderr" else made.values
        if values is None:
            raise InputError("numbers: no standard error", got=asked["map"])
        found = numbers(values, layer=asked.get("layer"), head=asked.get("head") or 0, query=asked.get("query"))
        return {}, [found.tobytes()]
    raise InputError("explorer: no such task", got=repr(task), allowed="map, interval, points, numbers")
