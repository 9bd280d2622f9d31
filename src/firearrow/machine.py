"""The machine, the container on it and the interpreter, as far as they decide how much there is.

``python -P machine.py`` fails if that Python is slow by its build: set-up asks it, so that this
module imports nothing but the standard library.
"""

from __future__ import annotations

import os
import resource
import sys
import sysconfig
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")
OWN_MAPS: Final = Path("/proc/self/maps")


def memory_bytes(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """The memory that this process may use: the machine's, or less if its control group has less.

    ``own`` says in which groups below ``cgroups`` it is, a line each: ``0::/a/b`` for version 2,
    ``4:memory:/a/b`` for version 1. A group has no more than those that it is in.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(cgroups, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(cgroups / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def descriptors_max() -> int:
    """How many descriptors this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def slow_build(arguments: str | None = None, maps: Path = OWN_MAPS) -> str | None:
    """Tell why this Python takes up to three times as long for a message as others would.

    ``arguments`` are those of its `configure`. A distribution's Python is one executable, as
    Debian's, or has ``--enable-optimizations``; pyenv's is neither, unless it is told to. (A race
    was rejected: on a cold machine the slow one won.)
    """
    if arguments is None:
        arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    if "--with-pydebug" in arguments:
        return "built for debugging"
    is_library = any("/libpython3" in line for line in _lines(maps))
    if is_library and "--enable-optimizations" not in arguments:
        return "built as a shared library without optimisation"
    return None


def _limits(root: Path, path: str, name: str) -> list[int]:
    """The limits of a group and of all that it is in; ``max`` is none."""
    group = root / path.strip("/")
    found = [line for at in (group, *group.parents) for line in _lines(at / name)]
    return [int(line) for line in found if line.isdigit()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # another system, or a container that does not show it
        return []


if __name__ == "__main__":
    sys.exit(slow_build())
