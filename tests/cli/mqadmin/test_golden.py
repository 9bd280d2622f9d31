"""Each command prints on Firearrow what upstream's printed on the original broker."""

from __future__ import annotations

import pytest

from tests.interop.servers import WITH_USERS, serve
from tests.interop.waiting import wait_until
from tests.mqadminscript import (
    GOLDEN,
    ONLY_ORIGINAL,
    STAGES,
    WAITED_FOR,
    Place,
    golden,
    ours,
    printed,
    run_ours,
)


def _commands(stages: tuple[str, ...]) -> set[str]:
    return {line.split()[0] for stage in stages for line in stage.splitlines() if line}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the script prints."""
    directory = tmp_path_factory.mktemp("mqadmin")
    where = directory / "store", directory / "logs"
    with serve("firearrow", *where, settings=WITH_USERS) as server:
        files = directory / "files"
        files.mkdir()

        def wait() -> None:
            list_of_topics = ["topicList", "-n", server.namesrv]
            wait_until(
                lambda: set(WAITED_FOR) <= set(run_ours(list_of_topics)[0].split()),
                10,
                "routes of topics",
            )

        return printed(Place(server.namesrv, server.broker, files), STAGES, ours, wait)


@pytest.mark.parametrize("name", sorted(_commands(STAGES)))
def test_as_upstream(found: dict[str, str], name: str) -> None:
    assert found[name] == golden(name)


def test_there_is_a_file_for_each_command_and_no_other() -> None:
    names = {path.stem for path in GOLDEN.glob("*.txt")}
    assert names == _commands((*STAGES, *ONLY_ORIGINAL))
