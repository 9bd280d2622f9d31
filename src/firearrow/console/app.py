"""The web application: routes of pages, streams and files, and the headers that keep a browser safe.

Each page has one address. A browser that asks it for ``text/event-stream`` gets the moving part of the page whenever
the cluster's sampler has news; all browsers with the same page share one rendering.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firearrow import __version__
from firearrow.cli.failures import NothingFound, sentence
from firearrow.cli.output.reports import Cell, in_bytes, in_time, shown
from firearrow.cli.parameters import WrongOptions
from firearrow.console.clusters import Cluster, Clusters
from firearrow.console.page import NAVIGATION, Follow, Make, Page, View
from firearrow.console.pages import PAGES
from firearrow.console.vendored import asset
from firearrow.errors import BrokerError, FirearrowError, NotFound
from firearrow.wire.codes import ResponseCode

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
FOREVER: Final = "public, max-age=31536000, immutable"
STREAM: Final = "text/event-stream"
LIVE: Final = "live"
"""Block of a template that moves."""


def statuses(error: Exception) -> int:
    """Give the HTTP status for an error."""
    if isinstance(error, WrongOptions | ValueError):
        return 400
    if isinstance(error, NotFound | NothingFound):
        return 404
    if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
        return 403
    return 502 if isinstance(error, OSError | FirearrowError) else 500


def environment() -> Environment:
    """Give the templates with the functions that they use. Every text is escaped."""
    found = Environment(
        loader=PackageLoader("firearrow.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"asset": asset, "version": __version__, "navigation": NAVIGATION}
    found.globals["parts"] = found.get_template("parts.html").module
    found.filters |= {"bytes": in_bytes, "duration": in_time, "shown": _as_text}
    return found


def _as_text(cell: Cell, column: str = "") -> str:
    return shown(column, cell)


class Console:
    """Pages of some clusters."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters: Final = clusters
        self._templates: Final = environment()
        self._renderings: dict[tuple[str, str], tuple[int, asyncio.Task[str]]] = {}

    def application(self) -> Starlette:
        """Give the application."""
        routes: list[BaseRoute] = [
            Route("/", self._root),
            Route("/static/{name}", static),
            Mount(
                "/{cluster}",
                routes=[Route(it.path, self._endpoint(it.make, it.follow), methods=it.methods) for it in PAGES],
            ),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(Guarded)],
            lifespan=self._lifespan,
            exception_handlers={404: self._missing},
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self.clusters.running():
            yield

    async def _root(self, _: Request) -> Response:
        return RedirectResponse(f"/{self.clusters.first}/")

    async def _missing(self, request: Request, _: Exception) -> Response:
        return self._failed(request, None, NothingFound("There is no such page."))

    def _endpoint(self, make: Make, follow: Follow | None) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            name = request.path_params["cluster"]
            try:
                cluster = await self.clusters.get(name)
            except KeyError:
                return self._failed(request, None, NothingFound(f"There is no cluster {name!r}."))
            except (OSError, FirearrowError) as error:
                return self._failed(request, None, error)
            view = View(request, cluster)
            try:
                if STREAM in request.headers.get("accept", ""):
                    return _streamed(self._followed(view, follow) if follow else self._sampled(view, make))
                page = await make(view)
                return page if isinstance(page, Response) else self._shown(view, page)
            except Exception as error:  # a reader gets a page with a sentence for any exception
                return self._failed(request, cluster, error)

        return endpoint

    def _shown(self, view: View, page: Page) -> HTMLResponse:
        template = self._templates.get_template(page.template)
        return HTMLResponse(template.render(self._context(view.request, view.cluster, page)), page.status)

    def _failed(self, request: Request, cluster: Cluster | None, error: Exception) -> HTMLResponse:
        page = Page("failure.html", "Not possible", {"reason": sentence(error)}, status=statuses(error))
        template = self._templates.get_template(page.template)
        return HTMLResponse(template.render(self._context(request, cluster, page)), page.status)

    def _context(self, request: Request, cluster: Cluster | None, page: Page) -> dict[str, Any]:
        name = cluster.name if cluster is not None else self.clusters.first
        return {
            **page.context,
            "title": page.title,
            "trail": page.trail,
            "is_live": page.is_live,
            "base": f"/{name}",
            "cluster": cluster,
            "clusters": self.clusters.names,
            "here": request.url.path.removeprefix(f"/{name}"),
            "address": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        }

    # --- Streams: the moving part of a page, again for each sample ---

    async def _sampled(self, view: View, make: Make) -> AsyncGenerator[str, None]:
        sampler = view.cluster.sampler
        number, before = sampler.number, ""
        while True:
            number = await sampler.news(number)
            html = await self._moving(view, make, number)
            if html != before:
                before = html
                yield html

    async def _followed(self, view: View, follow: Follow) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(follow(view)) as pages:
                async for page in pages:
                    yield self._part(view, page)
        except (OSError, FirearrowError, WrongOptions, ValueError) as error:
            yield self._part(view, Page("failure.html", "Not possible", {"reason": sentence(error)}))

    async def _moving(self, view: View, make: Make, number: int) -> str:
        """Render the moving part of a page once for all browsers that show it."""
        key = (view.request.url.path, view.request.url.query)
        known = self._renderings.get(key)
        if known is None or known[0] < number:
            self._renderings = {at: it for at, it in self._renderings.items() if it[0] >= number - 1}
            known = self._renderings[key] = number, asyncio.create_task(self._rendered(view, make))
        return await asyncio.shield(known[1])

    async def _rendered(self, view: View, make: Make) -> str:
        try:
            page = await make(view)
        except Exception as error:
            page = Page("failure.html", "Not possible", {"reason": sentence(error)})
        assert isinstance(page, Page), "files have no stream"
        return self._part(view, page)

    def _part(self, view: View, page: Page) -> str:
        template = self._templates.get_template(page.template)
        context = template.new_context(self._context(view.request, view.cluster, page))
        return "".join(template.blocks[LIVE](context))


def _streamed(parts: AsyncGenerator[str, None]) -> Response:
    """Send moving parts as events until the browser goes away."""

    async def events() -> AsyncIterator[str]:
        async with aclosing(parts):
            async for html in parts:
                yield "".join(f"data: {line}\n" for line in html.splitlines()) + "\n"

    return StreamingResponse(events(), media_type=STREAM, headers={"Cache-Control": "no-store", "Vary": "Accept"})


class Guarded:
    """Middleware that adds the headers of `HEADERS` to each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, guarded)


TYPES: Final[Mapping[str, str]] = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


async def static(request: Request) -> Response:
    """Serve a file of the package."""
    name = request.path_params["name"]
    file = files("firearrow.console").joinpath("static", name)
    kind = TYPES.get(name.rpartition(".")[2])
    if kind is None or not file.is_file():
        return Response("There is no such file.", 404)
    return Response(file.read_bytes(), media_type=kind, headers={"Cache-Control": FOREVER})
