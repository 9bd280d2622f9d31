"""The `firearrow` command: arguments in, exit code out.

0 is success, 1 an error that one sentence on standard error explains, 2 a wrong command line. Only
`store` ends with 1 for damage, 2 for an error.
Commands import what they need when they run, so that `--version` and `--help` stay instant.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from firearrow import __version__
from firearrow.cli import EMBEDDED_STORE
from firearrow.cli.output import forget_output, output_is_closed
from firearrow.cli.parser import Parser
from firearrow.cli.summaries import as_sentence
from firearrow.cli.values import pair
from firearrow.errors import FirearrowError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (that of the process, if none is given) and give its exit code.

    Who reads the output may close it when there is enough, as `head` does: that is no error.
    """
    try:
        try:
            return _run(build_parser().parse_args(arguments))
        except FirearrowError as error:
            print(f"firearrow: {error}", file=sys.stderr)
            return 1
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not output_is_closed():
            raise  # it is of a connection
        forget_output()  # what is left
        return 0


def build_parser() -> argparse.ArgumentParser:
    """Declare every command and option; the documentation is tested against it."""
    from firearrow.cli.pipeline import add_pipeline
    from firearrow.cli.store import add_store

    parser: argparse.ArgumentParser = Parser(
        prog="firearrow",
        description="Apache RocketMQ's message system in Python.",
        epilog="`firearrow COMMAND --help` lists the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"firearrow {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_namesrv(commands)
    _add_broker(commands)
    add_store(commands)
    add_pipeline(commands)
    return parser


Commands = argparse._SubParsersAction  # argparse gives its type no public name


def _add_serve(commands: "Commands[argparse.ArgumentParser]") -> None:
    command = _add_command(commands, "serve", "run a name server and a broker in one process")
    _add_name_servers(command)
    command.add_argument(
        "--store",
        metavar="DIR",
        help=f"store directory (default: storePathRootDir, else ./{EMBEDDED_STORE})",
    )
    command.add_argument(
        "--namesrv-port",
        type=_port,
        default=9876,
        metavar="N",
        help="port of the name server, 0 for a free one (default: 9876)",
    )
    _add_broker_port(command)
    command.add_argument(
        "--host", help="address to listen on (default: bindAddress if set, else 127.0.0.1)"
    )


def _add_namesrv(commands: "Commands[argparse.ArgumentParser]") -> None:
    command = _add_command(commands, "namesrv", "run a name server")
    command.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help="port to listen on, 0 for a free one (default: listenPort, 9876)",
    )
    command.add_argument("--host", help="address to listen on (default: bindAddress, 0.0.0.0)")


def _add_broker(commands: "Commands[argparse.ArgumentParser]") -> None:
    command = _add_command(commands, "broker", "run a broker")
    _add_name_servers(command)
    command.add_argument(
        "--store", metavar="DIR", help="store directory (default: storePathRootDir, ~/store)"
    )
    _add_broker_port(command)
    command.add_argument("--host", help="address to listen on (default: bindAddress, 0.0.0.0)")


def _add_command(
    commands: "Commands[argparse.ArgumentParser]", name: str, summary: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=as_sentence(summary))
    command.add_argument(
        "-c", dest="file", type=Path, metavar="FILE", help="RocketMQ's properties file"
    )
    command.add_argument(
        "--set",
        dest="pairs",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="sets one configuration key; may be repeated; overrides the file",
    )
    command.add_argument(
        "-p", dest="print_only", action="store_true", help="print the configuration and exit"
    )
    command.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="lowest level of log records to write (default: info)",
    )
    command.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="key=value lines, or one JSON object per line (default: text)",
    )
    return command


def _add_name_servers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-n", dest="namesrv_addr", metavar="HOST:PORT;...", help="name servers to register with"
    )


def _add_broker_port(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--broker-port",
        type=_port,
        metavar="N",
        help="port of the broker, 0 for a free one (default: listenPort, 10911)",
    )


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: allowed is 0 to 65535")
    return port


def _run(options: argparse.Namespace) -> int:
    if options.command == "store":
        from firearrow.cli.store import run as run_store

        return run_store(options)
    if options.command == "pipeline":
        from firearrow.cli.pipeline import run as run_pipeline

        return run_pipeline(options)
    from firearrow.cli.settings import ServerPlan

    plan = ServerPlan.from_options(options)
    if options.print_only:
        sys.stdout.write(plan.describe())
        sys.stderr.writelines(f"firearrow: {note}\n" for note in plan.notes)
        return 0
    from firearrow.cli.serve import run
    from firearrow.logs import configure

    configure(options.log_level, options.log_format)
    return run(plan, banner_as_log=options.log_format == "json")
