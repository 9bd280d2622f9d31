"""Imports of the client: few, since programs start often, and Spark's workers do."""

import subprocess
import sys

import pytest

HEAVY = (
    "numpy", "pyarrow", "pyspark", "uvloop", "lz4", "zstandard", "opentelemetry", "firearrow.store",
    "firearrow.broker", "firearrow.namesrv", "firearrow.config", "firearrow.net.server",
    "concurrent.futures.process", "multiprocessing",
)  # fmt: skip


def imported(statement: str) -> set[str]:
    """The modules that a statement brings in."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    ["from firearrow.client import Message, Producer, Session", "from firearrow.client.blocking import Producer"],
)
def test_nothing_heavy(statement: str) -> None:
    modules = imported(statement)
    assert "firearrow.client.producer.producer" in modules
    assert {name for name in HEAVY if name in modules} == set()


def test_the_package_alone_brings_no_event_loop() -> None:
    modules = imported("import firearrow.client, firearrow.client.queues")
    assert "asyncio" not in modules
    assert {name for name in modules if name.startswith("firearrow.")} == {
        "firearrow.client", "firearrow.client.queues"
    }  # fmt: skip


def test_each_name_is_where_it_is_said_to_be() -> None:
    import firearrow.client as client

    for name in client.__all__:
        assert getattr(client, name, None) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(client, "nothing")  # noqa: B009
