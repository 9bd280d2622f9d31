"""A server's operating-system process: start, pause, stop, and what it uses.

Memory is told apart by what stands behind it. A store maps its files, so a broker's resident
memory (Rss) holds as much of the log as the page cache happens to keep: it grows with what is
stored, belongs to the kernel, and goes when anyone else needs it. The *private* memory here is
`Anonymous` plus `Swap` of `/proc/PID/smaps_rollup`: heap, stacks and copied pages, which no file
backs and only this process can give back. `Private_Dirty` will not do: a shared file mapping with
one process counts there too.
"""

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.errors import BenchmarkError

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOP_TIMEOUT_S = 40  # Java's broker waits up to 30 s for its own threads


@dataclass(frozen=True)
class Memory:
    """Bytes a process holds: all that is resident, and what no file backs."""

    resident_bytes: int
    private_bytes: int

    def __add__(self, other: "Memory") -> "Memory":
        """Add up two processes."""
        return Memory(self.resident_bytes + other.resident_bytes, self.private_bytes + other.private_bytes)


class ServerProcess:
    """A started program in a process group of its own, with its output in a file."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self._popen = popen
        self.log = log

    @classmethod
    def start(cls, command: list[str | Path], log: Path, environment: Mapping[str, str] | None = None) -> Self:
        """Run `command` with standard output and error in `log`."""
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # an interrupt from the terminal reaches the benchmark only
            )
        return cls(popen, log)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def check(self) -> None:
        """Raise BenchmarkError with the end of its output if it has ended."""
        code = self._popen.poll()
        if code is not None:
            raise BenchmarkError(f"{self.log.name}: ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        """Give the end of its output."""
        return self.log.read_text(errors="replace")[-2000:]

    def pause(self) -> None:
        """Keep it from running until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask it to end; make it end after `timeout_s`."""
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._popen.wait()

    def kill(self) -> None:
        """End it with no chance to do anything more."""
        self._signal(signal.SIGKILL)
        self._popen.wait()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; say whether it came."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_s)
        return self._popen.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        if self._popen.poll() is None:
            os.killpg(self.pid, number)


def allow_files(wanted: int) -> None:
    """Raise the limit of open files, for the processes that start from now on as well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise BenchmarkError(f"{wanted} open files are needed, {hard} allowed (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def cpu_seconds(pids: Iterable[int]) -> float:
    """Add up user and system seconds of these processes."""
    return sum(parse_cpu_ticks(Path(f"/proc/{pid}/stat").read_text()) for pid in pids) / TICKS_PER_S


def memory(pids: Iterable[int]) -> Memory:
    """Add up the memory of these processes."""
    each = (parse_memory(Path(f"/proc/{pid}/smaps_rollup").read_text()) for pid in pids)
    return sum(each, Memory(0, 0))


def parse_cpu_ticks(stat: str) -> int:
    """Read utime + stime from `/proc/PID/stat`, whose second field may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def parse_memory(rollup: str) -> Memory:
    """Read Rss, Anonymous and Swap from `/proc/PID/smaps_rollup` (kibibytes)."""
    sizes: dict[str, int] = {}
    for line in rollup.splitlines()[1:]:
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) * 1024
    return Memory(sizes["Rss"], sizes["Anonymous"] + sizes["Swap"])
