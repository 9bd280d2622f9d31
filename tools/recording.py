"""Record the terminal that the README shows: a broker, a Python client, and commands, as an animated SVG.

`make recording` starts three shells on pseudo-terminals, in a temporary directory and with servers on free ports. It
types commands into them and writes their output to `docs/recording.svg`, unchanged. `hello.py` is the README's own
client program. Output appears as long after its command as it did in reality. The speed of typing and the pauses
between commands are not real.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tools.terminalsvg import Pane, as_svg

ROOT: Final = Path(__file__).parent.parent
PICTURE: Final = ROOT / "docs" / "recording.svg"
COLUMNS: Final = 84
NAME_SERVER: Final = "127.0.0.1:9876"  # of the README's program
SERVE: Final = "firearrow serve --ephemeral --set brokerName=broker-a --log-level warning"
COMMANDS: Final = (
    "firearrow message send greetings 'hello from a shell' --key k-1",
    "firearrow message cat greetings",
    "firearrow lag readers",
    "firearrow check | head -1",
)
TYPING_SECONDS: Final = 0.04  # a character
READING_SECONDS: Final = 1.2  # between two commands
WAIT_SECONDS_MAX: Final = 60.0
PROMPT: Final = "\x1b]133;A\x07"
"""Beginning of a prompt, as terminals mark it; invisible."""


class Film:
    """Time as the picture shows it: real while a command works, artificial while somebody types or reads."""

    def __init__(self) -> None:
        self._ahead = -time.monotonic()

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() + self._ahead

    def add(self, seconds: float) -> None:
        """Let time pass in the picture alone."""
        self._ahead += seconds


class Shell:
    """A shell on a pseudo-terminal; its output goes to a pane."""

    def __init__(self, pane: Pane, directory: str, environment: dict[str, str]) -> None:
        self.pane = pane
        self.printed = ""
        self._decode = getincrementaldecoder("utf-8")().decode  # a read may end within a character
        self._pid, self.terminal = pty.fork()
        if self._pid == 0:
            os.chdir(directory)
            os.execvpe("bash", ["bash", "--noprofile", "--norc", "--noediting", "-i"], environment)
        termios.tcsetwinsize(self.terminal, (pane.lines, pane.columns))

    def read(self, now: float) -> None:
        """Take the output that is there, as of this time."""
        try:
            text = self._decode(os.read(self.terminal, 1 << 16))
        except OSError:  # the shell has ended
            return
        self.printed += text
        self.pane.feed(text.replace(PROMPT, ""), now)

    def end(self) -> None:
        """End the shell and its programs as a closed window does."""
        os.close(self.terminal)
        os.kill(self._pid, signal.SIGHUP)
        os.waitpid(self._pid, 0)


class Recorder:
    """Types into shells, and reads all of them while it waits."""

    def __init__(self, shells: list[Shell]) -> None:
        self.film = Film()
        self._selector = selectors.DefaultSelector()
        for shell in shells:
            self._selector.register(shell.terminal, selectors.EVENT_READ, shell)

    def wait(self, shell: Shell, pattern: str, start: int = 0) -> str:
        """Read until a shell has printed the pattern; return its group."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (match := re.search(pattern, shell.printed[start:])):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {pattern!r} in:\n{shell.printed}")
            self.read(0.1)
        return match[match.lastindex or 0]

    def read(self, seconds: float) -> None:
        """Read the next output, and wait no longer than this for it."""
        for key, _ in self._selector.select(seconds):
            key.data.read(self.film.now())

    def skip_until(self, is_true: Callable[[], bool]) -> None:
        """Let real time pass that the picture does not show."""
        start = time.monotonic()
        while not is_true():
            if time.monotonic() > start + WAIT_SECONDS_MAX:
                raise TimeoutError(f"no success within {WAIT_SECONDS_MAX:g} s")
            self.read(0.5)
        self.film.add(start - time.monotonic())

    def type(self, shell: Shell, command: str) -> int:
        """Type a command; return where its output begins."""
        self.wait(shell, re.escape(PROMPT))
        start = len(shell.printed)
        shell.pane.type(command, self.film.now(), TYPING_SECONDS * len(command))
        self.film.add(TYPING_SECONDS * len(command))
        os.write(shell.terminal, f"{command}\n".encode())
        return start

    def run(self, shell: Shell, command: str) -> None:
        """Type a command, wait until it has ended, and leave time to read."""
        self.wait(shell, re.escape(PROMPT), self.type(shell, command))
        self.film.add(READING_SECONDS)


def record() -> list[Pane]:
    """Record servers, a client and commands, each in a pane."""
    panes = [
        Pane("name server and broker", COLUMNS, 10),
        Pane("a Python program", COLUMNS, 4),
        Pane("a shell", COLUMNS, 14),
    ]
    with tempfile.TemporaryDirectory(prefix="firearrow-") as directory:
        shells = [Shell(pane, directory, environment_of(directory)) for pane in panes]
        try:
            _play(Recorder(shells), shells, Path(directory))
        finally:
            for shell in reversed(shells):
                shell.end()
    return panes


def _play(recorder: Recorder, shells: Sequence[Shell], directory: Path) -> None:
    servers, client, shell = shells
    start = recorder.type(servers, SERVE)
    address = recorder.wait(servers, r"ready namesrv=(\S+) broker=\S+ grpc=\S+\r\n", start)
    recorder.film.add(READING_SECONDS)
    (directory / "hello.py").write_text(client_program().replace(NAME_SERVER, address), encoding="utf-8")
    start = recorder.type(client, "python hello.py")
    recorder.wait(client, "received hello\r\n", start)
    recorder.film.add(READING_SECONDS)
    recorder.run(shell, f"export NAMESRV_ADDR={address}")
    send, *others = COMMANDS
    recorder.run(shell, send)
    recorder.wait(client, "received hello from a shell\r\n")
    recorder.skip_until(lambda: _has_committed(address))
    for command in others:
        recorder.run(shell, command)


def _has_committed(name_server: str) -> bool:
    """Tell if the program has committed all offsets; it does so some seconds after it has consumed."""
    lag = [sys.executable, "-m", "firearrow", "lag", "readers", "--json", "-n", name_server]
    rows = json.loads(subprocess.run(lag, stdout=subprocess.PIPE, check=True).stdout)
    return [row["lag"] for row in rows] == [0]


def client_program() -> str:
    """Return the first Python program of the README."""
    return (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def environment_of(directory: str) -> dict[str, str]:
    """Return the environment of a shell with this home directory, in which commands of this checkout run."""
    passed = {name: os.environ[name] for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE") if name in os.environ}
    return passed | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": directory,
        "HISTFILE": "/dev/null",
        "LANG": "C.UTF-8",
        "PS1": f"{PROMPT}$ ",
        "TERM": "xterm-256color",
    }


def main() -> int:
    """Record, and write the picture."""
    parser = argparse.ArgumentParser(description="Record the terminal that the README shows.")
    parser.add_argument(
        "--to", type=Path, default=PICTURE, metavar="FILE", help="the picture (default: docs/recording.svg)"
    )
    picture = parser.parse_args().to
    picture.write_text(as_svg(record()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
