"""Limits of the machine, of its container and of the interpreter.

``python -P machine.py`` fails if the build of that Python is slow. The set-up runs it, so this module imports only the
standard library.
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
    """Memory that this process may use: the machine's, or less if its control group has less.

    ``own`` lists its groups below ``cgroups``, one a line: ``0::/a/b`` for version 2, ``4:memory:/a/b`` for version 1.
    A group has no more memory than its parents.
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
    """Limit of open file descriptors of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def slow_build(arguments: str | None = None, maps: Path = OWN_MAPS) -> str | None:
    """Return the reason if this Python takes up to three times as long for a message as others.

    ``arguments`` were given to its `configure`. A distribution's Python is one executable, as Debian's, or has
    ``--enable-optimizations``; pyenv's is neither by default. (A measurement was rejected: on a cold machine the slow
    one won.)
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
    """Limits of a group and of all its parents; ``max`` is none."""
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
