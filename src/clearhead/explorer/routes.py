"""The JSON API as one table: what each route is for, what it takes, what it answers. `check` and the OpenAPI
description both read it, so that neither can say what the other does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clearhead import __version__
from clearhead.errors import InputError

TEXT_LIMIT = 20_000
"""Characters of a text."""
Where = Literal["path", "query", "body"]


@dataclass(frozen=True)
class Param:
    """One parameter: where it stands and what it may be. `most` is a length for texts, a value for numbers."""

    name: str
    where: Where
    kind: Literal["string", "integer", "object"]
    about: str
    required: bool = True
    least: int = 0
    most: int = 0
    choices: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        if self.kind == "object":
            values = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null")]}
            return {"type": "object", "additionalProperties": values, "maxProperties": self.most}
        if self.kind == "integer":
            return {"type": "integer", "minimum": self.least, "maximum": self.most}
        return {"type": "string", "minLength": self.least, "maxLength": self.most} | (
            {"enum": list(self.choices)} if self.choices else {}
        )


@dataclass(frozen=True)
class Route:
    """One route. `ok` is the status of success and the schema of its JSON, or a media type."""

    name: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    about: str
    params: tuple[Param, ...]
    ok: tuple[int, str]
    errors: tuple[int, ...] = ()


def name_in_path(name: str, about: str) -> Param:
    return Param(name, "path", "string", about, least=1, most=120)


def position(name: str, where: Where, about: str, required: bool = True) -> Param:
    return Param(name, where, "integer", about, required, 0, 1_000_000)


ANALYSIS, JOB = name_in_path("analysis", "an analysis"), name_in_path("job", "a job")
LAYER, HEAD = position("layer", "body", "0 to the last"), position("head", "body", "0 to the last")
ROUTES = (
    Route("list_models", "GET", "/api/models", "The models that were named at the start.", (), (200, "Models")),
    Route("list_methods", "GET", "/api/methods", "Every method that the page can show.", (), (200, "Methods")),
    Route(
        "analyse", "POST", "/api/analyses", "Trace a text, prove the capture, apply the methods of the page.",
        (
            Param("model", "body", "string", "one of the models", least=1, most=500),
            Param("text", "body", "string", "the text", least=1, most=TEXT_LIMIT),
            Param("pair", "body", "string", "a second text", False, 1, TEXT_LIMIT),
            Param("probes", "body", "integer", "random probes a token; 0 leaves contributions out", False, 0, 4096),
        ),
        (202, "Started"), (404, 429),
    ),
    Route(
        "compute_map", "POST", "/api/analyses/{analysis}/maps", "Compute a method.",
        (
            ANALYSIS,
            Param("method", "body", "string", "a method", least=1, most=200),
            Param("options", "body", "object", "its options", False, most=40),
        ),
        (202, "Job"), (404, 429),
    ),
    Route(
        "interval", "POST", "/api/analyses/{analysis}/intervals", "Lowest and highest weights of a row of attention.",
        (ANALYSIS, LAYER, HEAD, position("query", "body", "position of the token")), (202, "Job"), (404, 429),
    ),
    Route(
        "points", "POST", "/api/analyses/{analysis}/points", "Queries and keys of a head on one map.",
        (ANALYSIS, LAYER, HEAD, Param("kind", "body", "string", "how", choices=("pca", "umap", "tsne"), most=4)),
        (202, "Job"), (404, 429),
    ),
    Route(
        "numbers", "GET", "/api/analyses/{analysis}/maps/{map}",
        "Numbers of a map as little-endian 32-bit floats: of one layer [query, key], or of one query [layer, key].",
        (
            ANALYSIS, name_in_path("map", "a map of the analysis"),
            Param("part", "query", "string", "which numbers", False, choices=("value", "stderr"), most=6),
            position("layer", "query", "all queries of this layer", False),
            position("query", "query", "all layers of this query", False),
            position("head", "query", "for maps with heads", False),
        ),
        (200, "application/octet-stream"), (404,),
    ),
    Route("job", "GET", "/api/jobs/{job}", "How far a job is.", (JOB,), (200, "Job"), (404,)),
    Route("cancel", "DELETE", "/api/jobs/{job}", "End a job.", (JOB,), (200, "Job"), (404,)),
    Route(
        "events", "GET", "/api/jobs/{job}/events", "The same whenever it changes, as server-sent events.",
        (JOB,), (200, "text/event-stream"), (404,),
    ),
    Route("result", "GET", "/api/jobs/{job}/result", "What a job found.", (JOB,), (200, "Result"), (404, 409)),
)  # fmt: skip

STATES = ["waiting", "running", "done", "failed", "cancelled"]
SCHEMAS: dict[str, Any] = {
    "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    "Job": {
        "type": "object",
        "required": ["id", "state", "step", "seconds", "error"],
        "properties": {
            "id": {"type": "string"}, "state": {"type": "string", "enum": STATES}, "step": {"type": "string"},
            "seconds": {"type": "number"}, "error": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
    "Started": {
        "type": "object",
        "required": ["analysis", "job"],
        "properties": {"analysis": {"type": "string"}, "job": {"$ref": "#/components/schemas/Job"}},
    },
    "Models": {
        "type": "object",
        "required": ["models"],
        "properties": {"models": {"type": "array", "items": {"type": "string"}}},
    },
    "Methods": {
        "type": "object",
        "required": ["methods"],
        "properties": {"methods": {"type": "array", "items": {"type": "object"}}},
    },
    "Result": {"type": "object"},
}  # fmt: skip
MEANING = {
    400: "A parameter that cannot be used.", 403: "Asked from another site.", 404: "There is no such thing.",
    409: "The job has no result.", 413: "The body is too large.", 415: "The body is not JSON.",
    429: "Too many jobs wait.",
}  # fmt: skip


def check(route: Route, given: Mapping[Where, Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of a route, each as its type; those that are not given are None.

    Errors: InputError for one that is missing, unknown, or not what it may be.
    """
    for where in ("query", "body"):
        unknown = set(given[where]) - {param.name for param in route.params if param.where == where}
        if unknown:
            allowed = ", ".join(param.name for param in route.params if param.where == where) or "none"
            raise InputError(f"{route.name}: no such parameter", got=", ".join(sorted(unknown)), allowed=allowed)
    return {param.name: value_of(route, param, given[param.where]) for param in route.params}


def value_of(route: Route, param: Param, given: Mapping[str, Any]) -> Any:
    """One parameter. Errors: InputError."""
    what = f"{route.name}: {param.name}"
    if param.name not in given:
        if param.required:
            raise InputError(f"{what} is missing", allowed=param.about)
        return None
    value = given[param.name]
    if (
        param.kind == "integer"
        and param.where != "body"
        and isinstance(value, str)
        and value.isascii()
        and value.isdigit()
    ):
        value = int(value[:9])
    if param.kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of number: 3.0 is 3
    kind = {"string": str, "integer": int, "object": dict}[param.kind]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(what, got=type(value).__name__, allowed=f"{param.kind} ({param.about})")
    if param.choices and value not in param.choices:
        raise InputError(what, got=repr(value)[:80], allowed=", ".join(param.choices))
    size = value if isinstance(value, int) else len(value)
    if not param.least <= size <= param.most:
        unit = "" if param.kind == "integer" else {"string": " characters", "object": " entries"}[param.kind]
        raise InputError(what, got=f"{size}{unit}", allowed=f"{param.least} to {param.most}{unit}")
    return value


def openapi() -> dict[str, Any]:
    """The OpenAPI description of the table."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = operation(route)
    about = "The API behind `clearhead serve`: on this machine only, for the models named at its start."
    return {
        "openapi": "3.1.0",
        "info": {"title": "clearhead", "version": __version__, "description": about},
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def operation(route: Route) -> dict[str, Any]:
    """One operation of the description."""
    status, kind = route.ok
    media = kind if "/" in kind else "application/json"
    schema = {"type": "string"} if "/" in kind else {"$ref": f"#/components/schemas/{kind}"}
    if media == "application/octet-stream":
        schema = {"type": "string", "format": "binary"}
    if media == "text/event-stream":  # each event; its data is a Job as JSON
        schema = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
    failing = sorted({*route.errors, 400, 403} | ({413, 415} if route.method == "POST" else set[int]()))
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    told: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "parameters": [
            {
                "name": one.name,
                "in": one.where,
                "required": one.required,
                "description": one.about,
                "schema": one.schema,
            }
            for one in route.params
            if one.where != "body"
        ],
        "responses": {
            str(status): {"description": "As asked.", "content": {media: {"schema": schema}}},
            **{str(code): {"description": MEANING[code], "content": error} for code in failing},
        },
    }
    body = [one for one in route.params if one.where == "body"]
    if body:
        schema = {
            "type": "object",
            "properties": {one.name: one.schema | {"description": one.about} for one in body},
            "required": [one.name for one in body if one.required],
            "additionalProperties": False,
        }
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return told
