"""The memory limit of a process by its control groups, and the detection of a slow Python."""

import os
import resource
from pathlib import Path

import pytest

from firearrow.machine import descriptors_max, memory_bytes, slow_build

WHOLE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "1000"}, 1000),
        ("0::/a/b\n", {"a/b/memory.max": "1000", "a/memory.max": "900"}, 900),
        ("0::/a/b\n", {"memory.max": "800"}, 800),  # a container sees its own group as the root
        ("0::/\n", {"memory.max": "max"}, WHOLE),
        ("0::/\n", {"memory.max": str(WHOLE * 2)}, WHOLE),
        ("5:cpu,memory:/a\n4:pids:/b\n", {"memory/a/memory.limit_in_bytes": "700", "memory.max": "1"}, 700),
        ("4:pids:/a\n", {"memory/a/memory.limit_in_bytes": "700"}, WHOLE),
        ("", {"memory.max": "5"}, WHOLE),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, own: str, limits: dict[str, str], expected: int) -> None:
    (tmp_path / "own").write_text(own)
    for name, limit in limits.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    assert memory_bytes(tmp_path / "groups", tmp_path / "own") == expected


def test_a_system_without_control_groups_has_all_its_memory(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path / "none", tmp_path / "nothing") == WHOLE
    assert 0 < memory_bytes() <= WHOLE


def test_descriptors_are_what_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        assert descriptors_max() == 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


STATIC = "7f00-7f01 r-xp 00000000 08:01 1 /usr/bin/python3.11\n"
SHARED = "7f00-7f01 r-xp 00000000 08:01 1 /opt/python/lib/libpython3.13.so.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "maps", "reason"),
    [
        ("'--enable-shared' '--prefix=/usr'", STATIC, None),  # Debian: both are built, one is run
        ("'--enable-shared' '--enable-optimizations' '--with-lto'", SHARED, None),  # Fedora
        ("'--enable-shared'", SHARED, "built as a shared library without optimisation"),  # pyenv
        ("'--with-pydebug' '--enable-optimizations'", STATIC, "built for debugging"),
        ("", "", None),  # a system that shows neither
    ],
)
def test_a_python_is_slow_by_its_build(arguments: str, maps: str, reason: str | None, tmp_path: Path) -> None:
    (tmp_path / "maps").write_text(maps)
    assert slow_build(arguments, tmp_path / "maps") == reason
