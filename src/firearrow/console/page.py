"""Pages: functions from a request to a template with its values, and the list of them all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from firearrow.cli.failures import NothingFound
from firearrow.cli.output.reports import Table
from firearrow.cli.parameters import WrongOptions
from firearrow.client.admin.calls import SilentServer
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Cluster
from firearrow.console.forms import Foreign
from firearrow.console.operations import OPERATIONS, Ran, run
from firearrow.console.prometheus import SPANS, NoHistory
from firearrow.console.signin import NotAdmitted, SignedIn
from firearrow.console.views import TableView, path_to, view
from firearrow.errors import BrokerError, FirearrowError, NotFound
from firearrow.wire.codes import ResponseCode

UNFORESEEN: Final = 500
LAST_HOUR: Final = "1h"
LOCAL: Final = "local"
"""User of a console without sign-in."""


@dataclass(frozen=True, slots=True)
class Page:
    """A template with its values. ``trail`` are the pages above it, each with its title and address.

    A live page renders its block ``live`` again for each sample. ``missing`` are sentences on facts that it can't show.
    """

    template: str
    title: str
    context: Mapping[str, Any] = field(default_factory=dict)
    trail: Sequence[tuple[str, str]] = ()
    is_live: bool = False
    status: int = 200
    missing: Sequence[str] = ()


class Curve(NamedTuple):
    """Times and values of series, and the spans to choose from: title, address, and a mark of the chosen one."""

    columns: list[list[float | None]]
    spans: Sequence[tuple[str, str, bool]] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A request for a page of a cluster. One that ``only_shows`` has neither changes nor previews of them."""

    request: Request
    cluster: Cluster
    signed_in: SignedIn | None = None
    only_shows: bool = False

    @property
    def changes(self) -> ChangeLog:
        """Log of the changes of this console."""
        log: ChangeLog = self.request.app.state.changes
        return log

    @property
    def user(self) -> str:
        """Name in the log of changes."""
        return self.signed_in.name if self.signed_in is not None else LOCAL

    @property
    def query(self) -> Mapping[str, str]:
        """Values of the address."""
        return self.request.query_params

    @property
    def is_submitted(self) -> bool:
        """Tell whether a person has sent a form. One that is still filled in may be wrong, and that is no failure."""
        return self.request.method == "POST" and "hx-request" not in self.request.headers

    def part(self, name: str) -> str:
        """Give a part of the path."""
        return str(self.request.path_params[name])

    def href(self, *parts: str | int) -> str:
        """Give the address of a page of the cluster."""
        return f"/{self.cluster.name}{path_to(*parts)}"

    def table(self, table: Table, key: str = "", without: Sequence[str] = ()) -> TableView:
        """Give the part of a table that the query selects, without some columns."""
        return view(table, self.query, key, f"/{self.cluster.name}", without)

    async def curve(self, *names: str) -> Curve:
        """Give series of the last hour, or of the ``span`` of the address if Prometheus has them."""
        cluster, span = self.cluster, self.query.get("span", "")
        if cluster.prometheus is None:
            return Curve(cluster.sampler.history.columns(names))
        spans = [(LAST_HOUR, "?", span not in SPANS), *((it, f"?span={it}", it == span) for it in SPANS)]
        if span not in SPANS:
            return Curve(cluster.sampler.history.columns(names), spans)
        of = sorted({fact.cluster for fact in cluster.sampler.seen.facts})
        try:
            return Curve(await cluster.prometheus.columns(names, span, of), spans)
        except NoHistory as error:
            return Curve([[], *([] for _ in names)], spans, str(error))

    async def run(self, name: str, /, **values: str | Sequence[str]) -> Ran:
        """Run an operation that changes nothing."""
        operation = OPERATIONS[name]
        assert not operation.changes, "a page only reads"
        words = {key: [text] if isinstance(text, str) else text for key, text in values.items()}
        return await run(operation, words, self.cluster.options)


Make = Callable[[View], Awaitable[Page | Response]]


async def made(view: View, make: Make) -> Page | Response:
    """Make a page. If a broker is silent, make it from the answers of the others.

    A change is made on all brokers, or not begun.
    """
    try:
        return await make(view)
    except SilentServer as silent:
        if view.request.method != "GET":
            raise
        try:
            page = await make(replace(view, cluster=view.cluster.without_silent))
        except (OSError, FirearrowError):
            raise silent from None
        return replace(page, missing=[f"{silent}. What only it knows is missing."]) if isinstance(page, Page) else page


Follow = Callable[[View], AsyncGenerator[Page, None]]


class Declared(NamedTuple):
    """A page: its address below a cluster's, and the function that makes it.

    The stream of a live page has what ``follow`` gives, or, without it, the page again for each sample.
    """

    path: str
    make: Make
    methods: Sequence[str] = ("GET",)
    follow: Follow | None = None


class Busy(FirearrowError):
    """More work than the console does at a time."""


class ReadOnly(FirearrowError):
    """A change in a console that only shows."""


def status_of(error: Exception) -> int:
    """Give the HTTP status for an error."""
    if isinstance(error, WrongOptions | ValueError):
        return 400
    if isinstance(error, NotFound | NothingFound):
        return 404
    if isinstance(error, Foreign | ReadOnly | NotAdmitted) or (
        isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION
    ):
        return 403
    if isinstance(error, Busy):
        return 503
    return 502 if isinstance(error, OSError | FirearrowError) else UNFORESEEN


class Entry(NamedTuple):
    """A row of the navigation."""

    title: str
    path: str
    icon: str


NAVIGATION: Final[Sequence[tuple[str, Sequence[Entry]]]] = (
    ("", (Entry("Overview", "/", "overview"),)),
    (
        "Messages",
        (
            Entry("Topics", "/topics", "topic"),
            Entry("Groups", "/groups", "group"),
            Entry("Find", "/find", "find"),
            Entry("Send", "/send", "send"),
            Entry("Dead letters", "/dead-letters", "dead"),
            Entry("Pending", "/pending", "pending"),
            Entry("Transactions", "/transactions", "transaction"),
            Entry("Lite topics", "/lite", "lite"),
        ),
    ),
    (
        "Servers",
        (
            Entry("Brokers", "/brokers", "broker"),
            Entry("Replicas", "/replicas", "replica"),
            Entry("Disk", "/disk", "disk"),
            Entry("Name servers", "/name-servers", "nameserver"),
        ),
    ),
    (
        "Control",
        (
            Entry("Access", "/access", "access"),
            Entry("Alerts", "/alerts", "alert"),
            Entry("Changes", "/changes", "change"),
            Entry("SQL", "/sql", "sql"),
        ),
    ),
)
