"""The web application: routes of pages, streams and files, and the headers that keep a browser safe.

Each page has one address. A browser that asks it for ``text/event-stream`` gets the moving part of the page whenever
the cluster's sampler has news; all browsers with the same page share one rendering.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from importlib.resources import files
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firearrow import __version__
from firearrow.cli.failures import NothingFound, sentence
from firearrow.cli.output.reports import Cell, in_bytes, in_time, shown, visible
from firearrow.cli.parameters import WrongOptions
from firearrow.client.diagnosis.findings import counted
from firearrow.clock import Clock
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Cluster, Clusters
from firearrow.console.forms import TOKEN, first, form_of, token_of
from firearrow.console.page import (
    NAVIGATION,
    UNFORESEEN,
    Busy,
    Declared,
    Follow,
    Make,
    Page,
    ReadOnly,
    View,
    made,
    status_of,
)
from firearrow.console.pages import PAGES
from firearrow.console.signin import CALLBACK, LOCAL_HOSTS, NotAdmitted, Sessions, SignedIn
from firearrow.console.vendored import asset
from firearrow.errors import FirearrowError
from firearrow.logs import Log
from firearrow.wire.signature import Credentials

if TYPE_CHECKING:
    from firearrow.console.openid import Provider

log: Final = Log(__name__)

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
SEE_OTHER: Final = 303
SIGN_IN: Final = "sign in"
WANTED: Final = "wanted"
"""Key of a session: the state of a sign-in at the provider, the cluster, and the page that was wanted."""
ADDRESS_MAX: Final = 1000
"""Characters of a wanted page that a cookie has room for."""
Answer = Callable[[Request, str], Awaitable[Response]]
"""Function of a request below a cluster's name, and that name."""
LINES: Final = frozenset(map(chr, range(0x20, 0x7F))) | {"\n", "\r", "\t"}
LIVE: Final = "live"
"""Block of a template that moves."""
STREAMS_MAX: Final = 500
SESSION_LOOK_SECONDS: Final = 5.0
"""Longest time that a stream outlives the session of its user."""
MISSING: Final = "{{ parts.notes(missing) }}"


def environment() -> Environment:
    """Give the templates with the functions that they use.

    Every text is escaped, and its characters that could turn or hide others are shown as escapes. Only texts of inputs
    (``| e``) keep these characters, because a browser sends these texts again.
    """
    found = Environment(
        loader=PackageLoader("firearrow.console"),
        autoescape=True,
        finalize=_harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"asset": asset, "version": __version__, "navigation": NAVIGATION}
    found.filters |= {"bytes": in_bytes, "duration": in_time, "shown": _as_text, "counted": counted}
    found.globals["parts"] = found.get_template("parts.html").module
    return found


def _harmless(value: Any) -> Any:
    """Give a text with all characters visible, but lines; Markup has been escaped already."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(it if it in LINES else visible(it) for it in value)


def _as_text(cell: Cell, column: str = "") -> str:
    return shown(column, cell)


class Console:
    """Pages of some clusters. ``changes`` is the log, ``key`` signs cookies, ``hosts`` are its names.

    ``provider`` is that of OpenID Connect, if there is one.
    """

    def __init__(
        self,
        clusters: Clusters,
        changes: ChangeLog,
        key: str,
        clock: Clock,
        hosts: Sequence[str] = LOCAL_HOSTS,
        *,
        read_only: bool = False,
        provider: Provider | None = None,
    ) -> None:
        self.clusters: Final = clusters
        self._clock: Final = clock
        self._provider: Final = provider
        self._changes: Final = changes
        self._key: Final = key
        self._hosts: Final = frozenset(hosts)
        self._read_only: Final = read_only
        self._sessions: Final = Sessions(clock)
        self._templates: Final = environment()
        self._ended: Final = asyncio.Event()
        self._streams = 0
        self._renderings: dict[tuple[Cluster, str, str, bool], tuple[int, asyncio.Task[str]]] = {}

    def application(self) -> Starlette:
        """Give the application."""
        routes: list[BaseRoute] = [
            Route("/", self._root),
            Route("/static/{name}", static),
            *self._routes_of_provider(),
            Route("/{cluster}/sign-in", self._of_cluster(self._sign_in), methods=["GET", "POST"]),
            Route("/{cluster}/sign-out", self._of_cluster(self._sign_out), methods=["POST"]),
            Mount(
                "/{cluster}",
                routes=[Route(it.path, self._of_cluster(partial(self._page, it)), methods=it.methods) for it in PAGES],
            ),
        ]
        # A strict cookie would not come with a link in a letter or with a provider's answer, and the sign-in page that
        # follows would end the session. All that links of another site can begin is a GET, which changes nothing.
        session = Middleware(
            SessionMiddleware, secret_key=self._key, session_cookie="firearrow", max_age=None, same_site="lax"
        )
        application = Starlette(
            routes=routes,
            middleware=[Middleware(Guarded, hosts=self._hosts), session],
            lifespan=self._lifespan,
            exception_handlers={404: self._missing},
        )
        application.state.changes = self._changes
        return application

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self.clusters.running():
            yield

    async def _root(self, _: Request) -> Response:
        return RedirectResponse(f"/{self.clusters.first}/")

    async def _missing(self, request: Request, _: Exception) -> Response:
        return self._failed(request, self.clusters.first, NothingFound("There is no such page."))

    def _of_cluster(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Give the endpoint of an address below a cluster's name."""

        async def endpoint(request: Request) -> Response:
            name = request.path_params["cluster"]
            if name not in self.clusters.names:
                return self._failed(request, self.clusters.first, NothingFound(f"There is no cluster {name!r}."))
            try:
                return await answer(request, name)
            except Exception as error:  # a reader gets a page with a sentence for any exception
                return self._failed(request, name, error)

        return endpoint

    async def _page(self, declared: Declared, request: Request, name: str) -> Response:
        user = self._sessions.user(request, name)
        if user is None and self.clusters.needs_user(name):
            if _is_for_programs(request, name):
                return JSONResponse({"error": "a user of the cluster is needed: sign in"}, 401)
            wanted = urlencode({"next": _address_of(request)} if request.method == "GET" else {})
            return RedirectResponse(f"/{name}/sign-in?{wanted}", SEE_OTHER)
        if self._only_shows(user) and request.method != "GET":
            started = "This console only shows: it was started with --read-only."
            raise ReadOnly(started if self._read_only else "Your role may only look: nothing is changed.")
        cluster = await self.clusters.get(name, user.credentials if user else None)
        view = View(request, cluster, user, only_shows=self._only_shows(user))
        if request.method == "GET" and STREAM in request.headers.get("accept", ""):
            if self._streams >= STREAMS_MAX:
                raise Busy(f"{STREAMS_MAX:,} pages are followed already, the most of this console.")
            follow = declared.follow
            return self._streamed(view, self._followed(view, follow) if follow else self._sampled(view, declared.make))
        page = await made(view, declared.make)
        return page if isinstance(page, Response) else self._html(request, name, page, view.cluster)

    def _only_shows(self, user: SignedIn | None) -> bool:
        return self._read_only or (user is not None and user.read_only)

    # --- Sign-in ---

    async def _sign_in(self, request: Request, name: str) -> Response:
        """Ask for user and password, or check them and go on to the page that was wanted."""
        if request.method == "GET":
            return self._sign_in_page(request, name, request.query_params.get("next", ""))
        values = await form_of(request)
        user = Credentials(first(values, "user").strip(), first(values, "password"))
        wanted = first(values, "next")
        log = self._changes.begin(user.access_key, name, SIGN_IN, {})
        try:
            await self._sessions.sign_in(request, name, self.clusters.target(name), user)
        except (OSError, FirearrowError) as error:
            self._changes.failed(log, sentence(error))
            return self._sign_in_page(request, name, wanted, error)
        self._changes.done(log)
        return _onward(name, wanted)

    def _sign_in_page(
        self, request: Request, name: str, wanted: str, error: OSError | FirearrowError | None = None
    ) -> Response:
        trouble, status = ("", 200) if error is None else (sentence(error), 403)
        provider = self._provider.host if self._provider is not None else None
        context = {"trouble": trouble, "next": wanted, "provider": provider}
        return self._html(request, name, Page("signin.html", "Sign in", context, status=status))

    async def _sign_out(self, request: Request, name: str) -> Response:
        await form_of(request)
        self._sessions.sign_out(request)
        return RedirectResponse(f"/{name}/sign-in", SEE_OTHER)

    def _routes_of_provider(self) -> list[BaseRoute]:
        if self._provider is None:
            return []
        ask = self._of_cluster(partial(self._ask, self._provider))
        return [Route(CALLBACK, partial(self._called_back, self._provider)), Route("/{cluster}/sign-in/openid", ask)]

    async def _ask(self, provider: Provider, request: Request, name: str) -> Response:
        """Send a browser to the provider, and remember the wanted page."""
        state, wanted = token_urlsafe(16), request.query_params.get("next", "")
        try:
            answer = await provider.ask(request, state)
        except NotAdmitted as error:
            return self._sign_in_page(request, name, wanted, error)
        request.session[WANTED] = state, name, wanted if len(wanted) <= ADDRESS_MAX else ""
        return answer

    async def _called_back(self, provider: Provider, request: Request) -> Response:
        """Let a person in whom the provider knows, to the page that was wanted."""
        state, name, wanted = request.session.get(WANTED, ("", self.clusters.first, ""))
        if not state or request.query_params.get("state") != state:
            error = NotAdmitted("This sign-in has not begun in this browser, or another one began later: begin again.")
            return self._sign_in_page(request, name, wanted, error)
        del request.session[WANTED]
        log = None
        try:
            person = await provider.person(request)
            log = self._changes.begin(person.name, name, SIGN_IN, {})
            users = provider.users(person, self._clock.monotonic())
            if name not in users:
                raise NotAdmitted(f"{person.name} has no role for the cluster {name}")
        except NotAdmitted as error:
            if log is not None:
                self._changes.failed(log, sentence(error))
            return self._sign_in_page(request, name, wanted, error)
        self._sessions.admit(request, users)
        self._changes.done(log)
        return _onward(name, wanted)

    def _html(self, request: Request, name: str, page: Page, cluster: Cluster | None = None) -> HTMLResponse:
        template = self._templates.get_template(page.template)
        return HTMLResponse(template.render(self._context(request, name, page, cluster)), page.status)

    def _failed(self, request: Request, name: str, error: Exception) -> Response:
        status = status_of(error)
        if status == UNFORESEEN:
            log.error("page failed", extra={"path": request.url.path}, exc_info=error)
        if _is_for_programs(request, name):
            return JSONResponse({"error": sentence(error)}, status)
        return self._html(request, name, _failure(error))

    def _context(self, request: Request, name: str, page: Page, cluster: Cluster | None = None) -> dict[str, Any]:
        user = self._sessions.user(request, name)
        frame = {
            "title": page.title,
            "trail": page.trail,
            "is_live": page.is_live,
            "missing": page.missing,
            "base": f"/{quote(name)}",
            "name_of_cluster": name,
            "cluster": cluster,
            "clusters": self.clusters.names,
            "user": user.name if user is not None else None,
            "read_only": self._only_shows(user),
            "here": request.url.path.removeprefix(f"/{name}"),
            "csrf": token_of(request),
            "address": _address_of(request),
        }
        assert not frame.keys() & page.context.keys(), "a page has names of its own"
        return {**page.context, **frame}

    # --- Streams: the moving part of a page, again for each sample ---

    def end_streams(self) -> None:
        """End all streams, before the server waits for their browsers."""
        self._ended.set()

    def _streamed(self, view: View, parts: AsyncGenerator[str, None]) -> Response:
        """Send moving parts as events until the browser goes away, its session ends, or the server does."""

        async def events() -> AsyncIterator[str]:
            self._streams += 1
            try:
                async with aclosing(parts):
                    while (html := await self._coming(view, parts)) is not None:
                        yield "".join(f"data: {line}\n" for line in html.splitlines()) + "\n"
            finally:
                self._streams -= 1

        return StreamingResponse(events(), media_type=STREAM, headers={"Cache-Control": "no-store", "Vary": "Accept"})

    async def _coming(self, view: View, parts: AsyncGenerator[str, None]) -> str | None:
        """Wait for the next part of a stream; None at its end, and when the session or the server ends."""
        part, ended = asyncio.ensure_future(anext(parts, None)), asyncio.create_task(self._ended.wait())
        try:
            while not (part.done() or ended.done()):
                await asyncio.wait([part, ended], timeout=SESSION_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if self._sessions.user(view.request, view.cluster.name) != view.signed_in:
                    return None
            return part.result() if part.done() else None
        finally:
            part.cancel()
            ended.cancel()
            await asyncio.wait([part, ended])

    async def _sampled(self, view: View, make: Make) -> AsyncGenerator[str, None]:
        sampler = view.cluster.sampler
        number, before = sampler.number, ""
        while True:
            number = await sampler.news(number)
            view.cluster.touch()
            html = await self._moving(view, make, number)
            if html != before:
                before = html
                yield html

    async def _followed(self, view: View, follow: Follow) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(follow(view)) as pages:
                async for page in pages:
                    view.cluster.touch()
                    yield self._part(view, page)
        except (OSError, FirearrowError, WrongOptions, ValueError) as error:
            yield self._part(view, _failure(error))

    async def _moving(self, view: View, make: Make, number: int) -> str:
        """Render the moving part of a page once for all browsers of a user, so without a session's token."""
        key = (view.cluster, view.request.url.path, view.request.url.query, self._only_shows(view.signed_in))
        known = self._renderings.get(key)
        if known is None or known[0] < number:
            self._renderings = {
                at: it for at, it in self._renderings.items() if at[0] is not view.cluster or it[0] >= number - 1
            }
            known = self._renderings[key] = number, asyncio.create_task(self._rendered(view, make))
        return await asyncio.shield(known[1])

    async def _rendered(self, view: View, make: Make) -> str:
        try:
            page = await made(view, make)
        except Exception as error:
            log.debug("stream shows a failure", extra={"path": view.request.url.path, "error": error})
            page = _failure(error)
        assert isinstance(page, Page), "files have no stream"
        return self._part(view, page)

    def _part(self, view: View, page: Page) -> str:
        template = self._templates.get_template(page.template)
        context = self._context(view.request, view.cluster.name, page, view.cluster) | {TOKEN: ""}
        missing = self._templates.from_string(MISSING).render(missing=page.missing)
        return missing + "".join(template.blocks[LIVE](template.new_context(context)))


def _address_of(request: Request) -> str:
    """Give the path and the query of a request."""
    return quote(request.url.path) + (f"?{request.url.query}" if request.url.query else "")


def _onward(name: str, wanted: str) -> Response:
    """Go on to the page of a cluster that was wanted before the sign-in."""
    return RedirectResponse(wanted if wanted.startswith(f"/{name}/") else f"/{name}/", SEE_OTHER)


def _is_for_programs(request: Request, name: str) -> bool:
    """Return whether a request asks the API of a cluster, whose refusals are JSON."""
    return f"{request.url.path}/".startswith(f"/{name}/api/")


def _failure(error: Exception) -> Page:
    status = status_of(error)
    return Page("failure.html", "Not possible", {"reason": sentence(error), "status": status}, status=status)


class Guarded:
    """Middleware that answers only to known names of this host, and adds `HEADERS` to each answer.

    Otherwise a page of any site could give its own name this machine's address, and read what this console shows.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        app = self._app
        if (
            scope["type"] == "http"
            and (name := urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname) not in self._hosts
        ):
            text = f"This console does not answer to the name {name!r}: start it with --name."
            app = Response(text, 421, media_type="text/plain")
        await app(scope, receive, guarded)


TYPES: Final[Mapping[str, str]] = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


async def static(request: Request) -> Response:
    """Serve a file of the package."""
    name = request.path_params["name"]
    file = files("firearrow.console").joinpath("static", name)
    kind = TYPES.get(name.rpartition(".")[2])
    if kind is None or not file.is_file():
        return Response("There is no such file.", 404)
    return Response(file.read_bytes(), media_type=kind, headers={"Cache-Control": FOREVER})
