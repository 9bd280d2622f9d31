"""What the machine, or the container on it, gives this process."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")


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
