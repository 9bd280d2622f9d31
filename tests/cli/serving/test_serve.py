"""Whole servers in a process of their own: they say when they serve, and stop when told to."""

import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from firearrow import __version__

READY = re.compile(r"ready namesrv=127\.0\.0\.1:(\d+) broker=127\.0\.0\.1:(\d+) grpc=127\.0\.0\.1:(\d+)\n")
STOP_SECONDS_MAX = 30


def _terminal() -> None:
    """Run in the new process: a hangup is not ignored, however these tests were started."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _no_room() -> None:
    """A disk can't be filled here; under this limit the same calls fail."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@contextmanager
def running(
    *arguments: str,
    before: Callable[[], None] = _terminal,
    stdin: int | None = None,
    program: Sequence[str] = ("-m", "firearrow"),
) -> Iterator[subprocess.Popen[str]]:
    """Start the command; it must have ended by itself when the block ends."""
    command = [sys.executable, *program, *arguments]
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_plain_environment(),
        preexec_fn=before,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def serving(
    store: Path, *arguments: str, before: Callable[[], None] = _terminal, stdin: int | None = None
) -> AbstractContextManager[subprocess.Popen[str]]:
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--no-console")
    return running("serve", "--store", str(store), *ports, *arguments, before=before, stdin=stdin)


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read()
    return line


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> str:
    """Stop the process as an operator does; give what else it wrote to standard error."""
    process.send_signal(number)
    _, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_serves_until_a_signal_and_leaves_a_clean_store(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "store") as process:
        ready = READY.fullmatch(read_line(process))
        assert ready
        for port in ready.groups():
            socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()
        assert (tmp_path / "store" / "abort").exists()
        banner = stop(process, number)
    assert not (tmp_path / "store" / "abort").exists()
    assert f"firearrow {__version__}" in banner
    for fact in [f"pid {process.pid}", str(tmp_path / "store"), *ready.groups()]:
        assert fact in banner


def _no_umask() -> None:
    """Everybody may do everything with a new file, unless its maker says otherwise."""
    os.umask(0)
    _terminal()


def modes_below(root: Path) -> dict[str, int]:
    """The permissions of a directory and all in it."""
    return {str(path): stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}


def test_no_others_may_read_messages_or_users_whoever_starts_a_server(tmp_path: Path) -> None:
    store, settings = tmp_path / "made/store", tmp_path / "broker.conf"
    settings.write_text(
        "authenticationEnabled=true\n"
        'initAuthenticationUser={"username":"root","password":"secret"}\n'
        'innerClientAuthenticationCredentials={"accessKey":"root","secretKey":"secret"}\n'
    )
    with serving(store, "-c", str(settings), before=_no_umask) as process:
        read_line(process)
        stop(process)
    modes = modes_below(tmp_path / "made")
    assert {path: oct(mode) for path, mode in modes.items() if mode & stat.S_IRWXO} == {}
    users = {path: mode for path, mode in modes.items() if {"users", "acls"} & set(Path(path).parts)}
    assert len(users) > 10
    for path, mode in users.items():
        assert oct(mode) == oct(0o700 if Path(path).is_dir() else 0o600), path


SLOW_PYTHON = """
import sys
import firearrow.cli.serving.serve
from firearrow.cli.main import main
firearrow.cli.serving.serve.slow_build = lambda: "built for debugging"
sys.exit(main(sys.argv[1:]))
"""


def test_the_start_says_that_its_python_is_slow() -> None:
    with running("namesrv", "--port", "0", program=["-c", SLOW_PYTHON]) as process:
        read_line(process)
        assert "python     built for debugging: it may take twice the CPU" in stop(process)


@pytest.mark.parametrize("closes", [True, False])
def test_an_ephemeral_store_is_gone_in_the_end(closes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running("serve", "--ephemeral", "--until-stdin-closes", stdin=subprocess.PIPE) as process:
        ready = READY.fullmatch(read_line(process))
        assert ready
        assert not {"9876", "10911"} & set(ready.groups())
        [store] = tmp_path.glob("firearrow-*/store")
        assert (store / "lock").exists()
        assert process.stdin is not None
        process.stdin.write("whatever")
        process.stdin.flush()
        if not closes:
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_SECONDS_MAX) == 0
        process.communicate(timeout=STOP_SECONDS_MAX)  # closes standard input
        assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_who_has_no_standard_input_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "--until-stdin-closes", stdin=subprocess.DEVNULL) as process:
        read_line(process)
        _, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert process.returncode == 0, err
    assert not (tmp_path / "store" / "abort").exists()


def test_a_lost_terminal_is_nothing_under_nohup_and_more_signals_disturb_no_stop(tmp_path: Path) -> None:
    with serving(tmp_path / "store", before=_nohup) as process:
        read_line(process)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGQUIT)
        assert process.stderr is not None
        while "most recent call first" not in process.stderr.readline():  # where it is, as Java's
            assert process.poll() is None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            process.send_signal(number)
        stop(process)
    assert not (tmp_path / "store" / "abort").exists()


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    with serving(tmp_path / "store", before=_no_room) as process:
        out, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert (process.returncode, out) == (1, "")
    file = tmp_path / "store" / "lock"
    assert last_line(err) == f"firearrow: the broker cannot use {file}: File too large"


def test_a_host_that_is_none_is_told(tmp_path: Path) -> None:
    with running("namesrv", "--host", "no.such.host.invalid", "--port", "0") as process:
        _, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert process.returncode == 1
    assert "cannot listen on no.such.host.invalid:0: " in last_line(err)
    assert "Unknown error" not in last_line(err)


def test_name_servers_that_do_not_answer_are_named_when_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        absent = f"127.0.0.1:{gone.getsockname()[1]}"
    with serving(tmp_path / "store", "-n", absent) as process:
        line = read_line(process)
        assert line.endswith(f" (not registered with {absent})\n")
        assert READY.match(line.partition(" (")[0] + "\n")
        stop(process)


@pytest.mark.parametrize("level", ["warning", "error"])
def test_what_is_asked_for_and_not_there_ends_the_start(tmp_path: Path, level: str) -> None:
    arguments = ("--log-level", level, "--set", "aclEnable=true")
    with serving(tmp_path / "store", *arguments) as process:
        out, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert (process.returncode, out) == (1, "")
    assert err == (
        "firearrow: aclEnable=true asks for the access control of RocketMQ 4, "
        "which this version does not have; remove the key to start without it\n"
    )
    assert not (tmp_path / "store").exists()


def test_the_log_can_be_json(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "--log-format", "json", "--set", "brokrName=x") as process:
        read_line(process)
        lines = stop(process).splitlines()
    assert lines
    assert [line for line in lines if not (line.startswith("{") and line.endswith("}"))] == []
    assert any("did you mean brokerName?" in line for line in lines)


def test_a_second_broker_on_the_store_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as first:
        read_line(first)
        with serving(tmp_path / "store") as second:
            out, err = second.communicate(timeout=STOP_SECONDS_MAX)
        assert (second.returncode, out) == (1, "")
        assert str(first.pid) in last_line(err)
        stop(first)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(
            "serve", "--no-console", "--store", str(tmp_path), "--namesrv-port", "0", "--broker-port", str(port)
        ) as process:
            out, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert (process.returncode, out) == (1, "")
    assert f"127.0.0.1:{port}: Address already in use" in last_line(err)
    assert not (tmp_path / "abort").exists()


def last_line(err: str) -> str:
    """Give the sentence that explains the end."""
    assert "Traceback" not in err
    line = err.splitlines()[-1]
    assert line.startswith("firearrow: ")
    return line


def test_servers_run_apart(tmp_path: Path) -> None:
    with running("namesrv", "--host", "127.0.0.1", "--port", "0") as namesrv:
        ready = re.fullmatch(r"ready namesrv=(127\.0\.0\.1:\d+)\n", read_line(namesrv))
        assert ready
        options = ["--host", "127.0.0.1", "--broker-port", "0", "--store", str(tmp_path)]
        with running("broker", "-n", ready[1], *options) as broker:
            assert re.fullmatch(r"ready broker=127\.0\.0\.1:\d+ grpc=127\.0\.0\.1:\d+\n", read_line(broker))
            stop(broker)
        stop(namesrv)


def test_a_controller_runs_alone_or_in_a_name_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    keys = {
        "controllerDLegerGroup": "g",
        "controllerDLegerPeers": f"n0-{address}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(tmp_path / "controller"),
        "enableControllerInNamesrv": "true",
        "bindAddress": "127.0.0.1",
    }
    conf = tmp_path / "controller.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    for command, says in (
        (["controller"], f"ready controller={re.escape(address)}\n"),
        (["namesrv", "--port", "0"], rf"ready namesrv=127\.0\.0\.1:\d+ controller={address}\n"),
    ):
        with running(*command, "-c", str(conf)) as process:
            assert re.fullmatch(says, read_line(process))
            with running("controller", "-c", str(conf)) as second:
                _, errors = second.communicate(timeout=STOP_SECONDS_MAX)
            assert second.returncode == 1
            assert errors.endswith(f"another process has {tmp_path / 'controller'} open\n")
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_SECONDS_MAX) == 0
