"""`clearhead serve`: the page and its JSON API (`routes.py`) on this machine's loopback address.

Every request must be for this host and, where it names an origin, from this page. Only files of the front end are
served. Numbers are computed in processes of their own (`jobs.py`), so that the server always answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as Path

from clearhead.errors import ClearheadError
from clearhead.explorer import routes
from clearhead.explorer.catalogue import pickable, why_not
from clearhead.explorer.jobs import FINAL, Busy, Jobs
from clearhead.explorer.report import MODULES, static
from clearhead.explorer.session import numbers

HOST = "127.0.0.1"
BODY_LIMIT = 256 * 1024
"""Bytes of a request."""
PATIENCE = 10.0
"""Seconds in which a request must have come."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
FILES = {"page.css": "text/css"} | dict.fromkeys((*MODULES, "server.js"), "text/javascript")
"""All that is served besides the API and the page."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Handler = Callable[[Jobs, dict[str, Any]], Awaitable[Response]]


def serve(models: tuple[str, ...], port: int, *, workers: int = 1, seconds: float = 600.0, threads: int = 1) -> None:
    """Load the models, then answer until interrupted. Errors: those of `load`; OSError where the port is taken."""
    jobs = Jobs(models, workers=workers, seconds=seconds, threads=threads)
    config = uvicorn.Config(
        application(jobs, port), host=HOST, port=port, log_level="warning", limit_concurrency=256, server_header=False
    )
    uvicorn.Server(config).run()


def application(jobs: Jobs, port: int) -> Starlette:
    """The ASGI application; it starts and stops the jobs."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncGenerator[None]:
        await asyncio.to_thread(jobs.start)
        yield
        await asyncio.to_thread(jobs.stop)

    paths = [Path("/", page), Path("/openapi.json", description), Path("/static/{name}", static_file)]
    methods: dict[str, dict[str, routes.Route]] = {}
    for route in routes.ROUTES:
        methods.setdefault(route.path, {})[route.method] = route
    paths += [Path(path, endpoint(jobs, own), methods=list(own)) for path, own in methods.items()]
    failing = {HTTPException: refused, ClearheadError: unusable}
    return Starlette(
        routes=paths, middleware=[Middleware(Guard, port=port)], exception_handlers=failing, lifespan=life  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


class Guard:
    """Lets through only what is asked of this host by this page or by no page; adds the headers of safety."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in (HOST, "localhost")} | ({HOST, "localhost"} if port == 80 else set())
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def safe(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        why = self.refusal([(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]])
        if why:
            return await JSONResponse({"error": why}, 403)(scope, receive, safe)
        return await self.app(scope, receive, safe)

    def refusal(self, headers: list[tuple[bytes, str]]) -> str | None:
        """Why a request is not answered; None where it is."""
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return f"This server answers for {' and '.join(sorted(self.hosts))} only."
        origins = [value for name, value in headers if name == b"origin"]
        if any(origin not in self.origins for origin in origins):
            return "This server answers its own page only."
        if any(name == b"sec-fetch-site" and value == "cross-site" for name, value in headers):
            return "This server answers its own page only."
        return None


def endpoint(jobs: Jobs, own: Mapping[str, routes.Route]) -> Callable[[Request], Awaitable[Response]]:
    """Reads and checks the parameters of a path's routes, then answers."""

    async def answer(request: Request) -> Response:
        route = own.get(request.method) or own["GET"]  # HEAD asks what GET does
        body = await json_of(request) if any(one.where == "body" for one in route.params) else {}
        asked = routes.check(route, {"path": request.path_params, "query": query_of(request), "body": body})
        try:
            return await HANDLERS[route.name](jobs, asked)
        except KeyError as error:
            raise HTTPException(
                404, f"There is no {error}; it may have been forgotten: analyse the text again."
            ) from None
        except Busy as error:
            raise HTTPException(429, str(error)) from None

    return answer


def query_of(request: Request) -> dict[str, str]:
    """The query's parameters. Errors: 400 for one that is given twice."""
    items = request.query_params.multi_items()
    if len(items) > len(dict(items)):
        raise HTTPException(400, "A parameter of the query is given twice.")
    return dict(items)


async def json_of(request: Request) -> dict[str, Any]:
    """The body. Errors: 413, 415, 400 for what is too large, not JSON, not an object, or comes too slowly."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "The body must be application/json.")
    try:
        return parsed(await asyncio.wait_for(body_of(request), PATIENCE))
    except TimeoutError:
        raise HTTPException(400, f"The body did not come within {PATIENCE:.0f} s.") from None


async def body_of(request: Request) -> bytes:
    """At most `BODY_LIMIT` bytes. Errors: 413."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_LIMIT:
            raise HTTPException(413, f"The body is larger than {BODY_LIMIT} bytes.")
    return body


def parsed(body: bytes) -> dict[str, Any]:
    """Errors: 400 for what is not a JSON object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The body is not JSON.") from None
    if not isinstance(value, dict):
        raise HTTPException(400, "The body must be a JSON object.")
    return value


async def refused(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)


async def unusable(request: Request, error: ClearheadError) -> Response:
    return JSONResponse({"error": str(error)}, 400)


# -------------------------------------------------------------------------------------------------------- the answers


async def page(request: Request) -> Response:
    return Response(static("server.html"), media_type="text/html")


async def description(request: Request) -> Response:
    return JSONResponse(routes.openapi())


async def static_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in FILES:
        raise HTTPException(404, "There is no such file.")
    return Response(static(name), media_type=FILES[name])


async def list_models(jobs: Jobs, asked: dict[str, Any]) -> Response:
    return JSONResponse({"models": list(jobs.models)})


async def list_methods(jobs: Jobs, asked: dict[str, Any]) -> Response:
    told = [
        {"name": one.name, "summary": one.summary, "paper": one.paper, "dims": one.dims, "unit": one.unit,
         "options": list(one.options), "unavailable": why_not(one)}
        for one in pickable().values()
    ]  # fmt: skip
    return JSONResponse({"methods": told})


async def analyse(jobs: Jobs, asked: dict[str, Any]) -> Response:
    if asked["model"] not in jobs.models:
        raise HTTPException(404, f"There is no such model here; there are: {', '.join(jobs.models)}.")
    analysis, job = jobs.analyse(asked["model"], asked["text"], asked["pair"], asked["probes"])
    return JSONResponse({"analysis": analysis.id, "job": job.told()}, 202)


async def compute_map(jobs: Jobs, asked: dict[str, Any]) -> Response:
    options = asked["options"] or {}
    return JSONResponse(jobs.ask(asked["analysis"], "map", {"method": asked["method"], "options": options}).told(), 202)


async def interval(jobs: Jobs, asked: dict[str, Any]) -> Response:
    analysis = asked.pop("analysis")
    return JSONResponse(jobs.ask(analysis, "interval", asked).told(), 202)


async def points(jobs: Jobs, asked: dict[str, Any]) -> Response:
    analysis = asked.pop("analysis")
    return JSONResponse(jobs.ask(analysis, "points", asked).told(), 202)


async def map_numbers(jobs: Jobs, asked: dict[str, Any]) -> Response:
    def read() -> bytes:
        values = jobs.array(asked["analysis"], asked["map"], asked["part"] or "value")
        return numbers(values, layer=asked["layer"], head=asked["head"] or 0, query=asked["query"]).tobytes()

    return Response(await asyncio.to_thread(read), media_type="application/octet-stream")


async def job(jobs: Jobs, asked: dict[str, Any]) -> Response:
    return JSONResponse(jobs.job(asked["job"]).told())


async def cancel(jobs: Jobs, asked: dict[str, Any]) -> Response:
    return JSONResponse(jobs.cancel(asked["job"]).told())


async def result(jobs: Jobs, asked: dict[str, Any]) -> Response:
    found = jobs.job(asked["job"])
    if found.result is None:
        raise HTTPException(409, f"The job is {found.state}." + (f" {found.error}" if found.error else ""))
    return Response(found.result, media_type="application/json")


async def events(jobs: Jobs, asked: dict[str, Any]) -> Response:
    watched = jobs.job(asked["job"])

    async def tell() -> AsyncIterator[str]:
        before = ""
        while True:
            told = watched.told()
            line = json.dumps(told | {"seconds": int(told["seconds"])})
            if line != before:
                yield f"data: {line}\n\n"
                before = line
            if told["state"] in FINAL:
                return
            await asyncio.sleep(0.05)

    return StreamingResponse(tell(), media_type="text/event-stream")


HANDLERS: dict[str, Handler] = {
    "list_models": list_models, "list_methods": list_methods, "analyse": analyse, "compute_map": compute_map,
    "interval": interval, "points": points, "numbers": map_numbers, "job": job, "cancel": cancel, "result": result,
    "events": events,
}  # fmt: skip
