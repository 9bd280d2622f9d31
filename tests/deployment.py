"""Commands that a file has for containers, as processes of this machine but for ports and places.

No container engine is needed. Names of containers become ports of this machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.interop.servers import Process, free_port, running

FIREARROW = str(Path(sys.executable).parent / "firearrow")
PLACE = "/var/lib/firearrow"
WITHIN_S = 60
METRICS_PORT = 5557

# Ports of each command, and the words that change them; a controller's follows from the addresses of its group.
METRICS = {METRICS_PORT: "--set=metricsPromExporterPort={}"}
PORTS = {
    "namesrv": {9876: "--port={}"},
    "controller": {9878: "", **METRICS},
    "broker": {10911: "--broker-port={}", 10912: "--set=haListenPort={}", 8081: "--grpc-port={}", **METRICS},
    "proxy": {8080: "--remoting-port={}", 8081: "--grpc-port={}", **METRICS},
    "console": {8088: "--port={}"},
}


def read(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=WITHIN_S) as answer:
        found: bytes = answer.read()
        return found


class Deployment:
    """Containers as processes by name, each with its ports and its directory here."""

    def __init__(self, home: Path, stack: ExitStack, commands: Mapping[str, Sequence[str]]) -> None:
        self.home = home
        self.commands = commands
        self.processes: dict[str, Process] = {}
        self._stack = stack
        self._ports = {
            name: {port: free_port(-2, 0, 1) for port in PORTS[command[0]]} for name, command in commands.items()
        }

    def address(self, name: str, port: int) -> str:
        return f"127.0.0.1:{self._ports[name][port]}"

    def here(self, name: str, text: str) -> str:
        """Give a word of a container's command as it is here; names may have a domain behind them."""
        text = text.replace(PLACE, str(self.home / name)).replace("0.0.0.0", "127.0.0.1")
        names = re.compile(rf"\b({'|'.join(self.commands)})(?:\.[\w.-]+)?:(\d+)")
        text = names.sub(lambda it: f"localhost:{self._ports[it[1]][int(it[2])]}", text)
        return re.sub(r"127\.0\.0\.1(:|', )(\d{4})\b", lambda it: f"127.0.0.1{it[1]}{self._own(name, it[2])}", text)

    def _own(self, name: str, port: str) -> int:
        return self._ports[name].get(int(port), int(port))

    def start(self, name: str) -> Process:
        (self.home / name).mkdir(exist_ok=True)
        command = self.commands[name]
        changes = [change.format(self._ports[name][port]) for port, change in PORTS[command[0]].items()]
        words = [FIREARROW, *(self.here(name, word) for word in command), *filter(None, changes), "--host=127.0.0.1"]
        process = self._stack.enter_context(running(words, self.home / f"{name}.log", HOME=str(self.home)))
        self.processes[name] = process
        return process

    def is_ready(self, name: str) -> bool:
        """Ask as a probe does, for the page that says if clients are served."""
        try:
            return bool(read(self.address(name, METRICS_PORT), "/readyz"))
        except urllib.error.URLError:
            return False

    def run(self, *words: str) -> str:
        return subprocess.run([FIREARROW, *words], check=True, capture_output=True, text=True).stdout

    def master(self, broker: str, namesrv: str) -> str | None:
        """Return the container that has the master of a broker name, by the answer of the name server."""
        listed = json.loads(self.run("broker", "list", "-n", namesrv, "--json"))
        masters = {row["address"] for row in listed if (row["broker"], row["brokerNumber"]) == (broker, 0)}
        brokers = (name for name, command in self.commands.items() if command[0] == "broker")
        return next((name for name in brokers if self.address(name, 10911) in masters), None)
