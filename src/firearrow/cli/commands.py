"""Table of commands: the name, purpose and module of each.

The module of a command is imported when a command line names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, TypeVar

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
PROGRAM: Final = "firearrow"
SHORT_FORMS: Final[Mapping[str, tuple[str, str]]] = {
    "send": ("message", "send"),
    "cat": ("message", "cat"),
    "tail": ("message", "tail"),
    "topics": ("topic", "list"),
    "groups": ("group", "list"),
}
"""Words that stand for a command of a group."""


class Listed:
    """A command by its name; ``place`` is ``module:name`` below `firearrow.cli`, or, with a dot, below `firearrow`."""

    def __init__(self, name: str, summary: str, place: str) -> None:
        self.name: Final = name
        self.summary: Final = summary
        self.place: Final = place


COMMANDS: Final = (
    Listed("serve", "run a name server and a broker in one process", "serving.commands:serve"),
    Listed("namesrv", "run a name server, or compare the name servers of a cluster", "cluster.nameservers:app"),
    Listed("controller", "run a controller, which elects a new master when one fails", "serving.commands:controller"),
    Listed("broker", "run a broker, or inspect the brokers of a cluster", "cluster.brokers:app"),
    Listed("proxy", "run a proxy, which connects RocketMQ 5 clients to a cluster by gRPC", "serving.commands:proxy"),
    Listed("topic", "look at topics, create and delete them", "cluster.topics:app"),
    Listed("group", "look at consumer groups and their clients, create and delete groups", "cluster.groups:app"),
    Listed("client", "look at a consumer that is online, and make it consume a message", "cluster.clients:app"),
    Listed("producer", "list the producers that are online", "cluster.producers:app"),
    Listed("message", "send, read, find, trace and resend messages", "messages.commands:app"),
    Listed("sql", "run a query over the messages of topics, or over their typed tables", "messages.sql:sql"),
    Listed("lag", "show the lag of consumer groups, in messages and in time", "health.lag:lag"),
    Listed("offset", "look at the offsets of consumer groups, and reset them", "cluster.offsets:app"),
    Listed("dlq", "look at dead letters, and send them again", "messages.deadletters:app"),
    Listed("transaction", "look at open transactions, and have them checked again", "messages.transactions:app"),
    Listed("cluster", "list clusters, drain brokers, and restart them one by one", "cluster.clusters:app"),
    Listed("lite", "look at lite topics: their parents, quotas, subscribers and lags", "cluster.lites:app"),
    Listed("pop", "look at the pops of a group, and at messages to give back", "cluster.pops:app"),
    Listed("user", "list, create and delete users, where brokers have access control", "cluster.users:app"),
    Listed("acl", "list, make and test the rules of users", "cluster.acls:app"),
    Listed("replica", "look at replicas and controllers, and elect a master", "cluster.replicas:app"),
    Listed("config", "look at the configuration of servers, and change it", "cluster.configs:app"),
    Listed("context", "name clusters, with their addresses, users and encryption", "cluster.contexts:app"),
    Listed("completion", "print the completion script for a shell", "completion:completion"),
    Listed("errors", "explain a response code: its cause and its cure", "health.errorcodes:errors"),
    Listed(
        "check",
        "say whether a cluster is healthy: exit code 0 ok, 1 warning, 2 critical, 3 unknown",
        "health.check:check",
    ),
    Listed(
        "doctor",
        "say why groups do not consume, or why sends are slow: exit code 1 if there is a reason",
        "health.doctor:doctor",
    ),
    Listed("top", "show the live throughput of a cluster: brokers, groups with their lag, topics", "health.top:top"),
    Listed("console", "run the console: pages of a cluster for a browser", ".console.command:console"),
    Listed("mcp", "give agents tools of a cluster, by the Model Context Protocol", ".console.command:mcp"),
    Listed("bench", "put a load on a cluster and measure it", "messages.bench:app"),
    Listed("mqadmin", "run a command of RocketMQ's own mqadmin", "mqadmin.command:mqadmin"),
    Listed("store", "inspect, verify and repair a store without a broker", "store.commands:app"),
    Listed("pipeline", "analyze a store or a cluster with Spark, and move its messages in bulk", "pipeline.jobs:app"),
)


class LazyCommand:
    """A command of a group; ``load`` imports its function, or the group of its commands."""

    def __init__(self, summary: str, load: Callable[[], Function | CommandGroup]) -> None:
        self.summary: Final = summary
        self.load: Final = load


class CommandGroup:
    """Commands below a name, such as ``firearrow topic``'s.

    ``default`` is the function of the name alone, without a command behind it.
    """

    def __init__(self, default: Function | None = None) -> None:
        self.commands: Final[dict[str, LazyCommand]] = {}
        self.default: Final = default

    def command(self, name: str, summary: str | None = None) -> Callable[[F], F]:
        """Make a function a command; by default its summary is the first line of its docstring."""

        def declare(function: F) -> F:
            self.commands[name] = LazyCommand(summary or _summary(function), lambda: function)
            return function

        return declare

    def add(self, *rows: Listed) -> None:
        """Add commands whose modules are imported when a command line names them."""
        self.commands.update({row.name: LazyCommand(row.summary, _imported(row.place)) for row in rows})


def _summary(function: Function) -> str:
    line = (function.__doc__ or "").partition("\n")[0].removesuffix(".")
    return line[:1].lower() + line[1:]


def _imported(place: str) -> Callable[[], Any]:
    module, _, name = place.partition(":")
    return lambda: getattr(import_module(f".{module}", "firearrow.cli"), name)


TOP: Final = CommandGroup()
TOP.add(*COMMANDS)
