"""Commands that run servers: `serve`, `namesrv`, `controller`, `broker` and `proxy`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firearrow.cli.parameters import WrongOptions
from firearrow.cli.serving.options import (
    BrokerOptions,
    ControllerOptions,
    NamesrvOptions,
    ProxyOptions,
    ServeOptions,
    ServerOptions,
)

_SERVE = ServeOptions()
_NAMESRV = NamesrvOptions()
_CONTROLLER = ControllerOptions()
_BROKER = BrokerOptions()
_PROXY = ProxyOptions()
_UMASK = 0o027


def serve(options: ServeOptions = _SERVE) -> int:
    """Run a name server and a broker in one process, or several brokers in separate processes."""
    if options.ephemeral and options.store:
        raise WrongOptions("argument --store: not allowed with argument --ephemeral")
    with _ephemeral_store(options) as settled:
        return _run(settled, until_stdin_closes=options.until_stdin_closes)


def namesrv(options: NamesrvOptions = _NAMESRV) -> int:
    """Run a name server."""
    return _run(options)


def controller(options: ControllerOptions = _CONTROLLER) -> int:
    """Run a controller, which elects a new master when one fails."""
    return _run(options)


def broker(options: BrokerOptions = _BROKER) -> int:
    """Run a broker."""
    return _run(options)


def proxy(options: ProxyOptions = _PROXY) -> int:
    """Run a proxy, which connects RocketMQ 5 clients to the brokers of a cluster by gRPC."""
    return _run(options)


def _run(options: ServerOptions, *, until_stdin_closes: bool = False) -> int:
    from firearrow.cli.serving.settings import ServerPlan

    plan = ServerPlan.from_options(options)
    if options.print_only:
        sys.stdout.write(plan.describe())
        sys.stderr.writelines(f"firearrow: {note}\n" for note in plan.notes)
        return 0
    from firearrow.cli.serving.serve import run
    from firearrow.logs import configure

    configure(options.log_level, options.log_format)
    os.umask(os.umask(0o777) | _UMASK)  # other users must not read messages and users
    as_log = options.log_format == "json"
    return run(plan, options, banner_as_log=as_log, until_stdin_closes=until_stdin_closes)


@contextmanager
def _ephemeral_store(options: ServeOptions) -> Iterator[ServeOptions]:
    """Give ephemeral servers a store in a temporary directory while they run."""
    if not options.ephemeral:
        yield options
        return
    import tempfile  # the import takes some ms

    from firearrow.files import thrown_away

    with tempfile.TemporaryDirectory(prefix="firearrow-") as directory, thrown_away(Path(directory)):
        yield options.changed(store=str(Path(directory) / "store"))
