"""Commands about the tables and queues that brokers store in RocksDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from firearrow.cli.mqadmin.exports import hashed
from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import text_order
from firearrow.database import DEFAULT
from firearrow.errors import ConfigError
from firearrow.state import VERSION_FAMILY, VERSION_KEY, open_database
from firearrow.wire import fastjson
from firearrow.wire.bodies import MASTER_ID

KINDS: Final = {
    "topics": "topicConfigTable",
    "subscriptionGroups": "subscriptionGroupTable",
    "consumerOffsets": "offsetTable",
}
CHECKED_MS: Final = 30 * 24 * 60 * 60 * 1000
FAILED: Final = 3  # result of a comparison


async def export_metadata(run: Invocation) -> None:
    """Print the topics or groups of a database, from its files."""
    path, kind = Path(run.text("p")), run.text("t")
    if not _exists(path):
        run.line("RocksDB path is invalid.")
        return
    if kind.lower() not in ("topics", "subscriptiongroups"):
        run.line(f"Invalid config type={kind}, Options: topics,subscriptionGroups")
        return
    rows = dict(_rows(path / kind))
    if run.flag("j", False):
        table = KINDS["topics" if kind.lower() == "topics" else "subscriptionGroups"]
        run.line(fastjson.dumps({table: hashed(rows)}, pretty=True).decode())
        return
    for number, (name, value) in enumerate(rows.items(), 1):
        run.line(f"{number}, Key: {name}, Value: {fastjson.dumps(value).decode()}")


def _exists(path: Path) -> bool:
    return path.exists()


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    with closing(open_database(path, (DEFAULT,))) as database:
        for key, value in database.tables[DEFAULT].rows():
            yield key.decode(), fastjson.loads(value)


async def to_json(run: Invocation) -> None:
    """Make brokers write tables as JSON; or print the tables of a database, from its files."""
    kinds = [kind for kind in (run.get("t") or ";".join(KINDS)).split(";") if kind]
    known = {kind.lower(): kind for kind in KINDS}
    if any(kind.strip().lower() not in known for kind in kinds):
        run.line(f"Invalid configType: {run.text('t')} please input topics/subscriptionGroups/consumerOffsets ")
        return
    kinds = [known[kind.strip().lower()] for kind in kinds]
    if run.has("n"):
        run.line("Use [rpc mode] call all brokers in cluster to export to json file ")
        if not run.has("c"):
            run.line("rpc mode Invalid args, please input cluster")
            raise ConfigError("option -c is missing")
        await _export_in_cluster(run, kinds)
    elif address := run.get("b"):
        run.line("Use [rpc mode] call broker to export to json file ")
        await run.admin.brokers.export_configs(address, kinds)
        run.write("broker export done.")
    elif run.has("p"):
        run.line("Use [local mode] load rocksdb to print or export file ")
        _print_files(run, kinds)
    else:
        run.usage()


async def _export_in_cluster(run: Invocation, kinds: list[str]) -> None:
    info = await run.admin.cluster()
    if run.text("c") not in info.cluster_addr_table:
        run.fail("clusterAddrTable is empty")
        return
    for name in text_order(info.broker_addr_table):
        address = info.broker_addr_table[name].broker_addrs.get(MASTER_ID)
        if address is not None:
            await run.admin.brokers.export_configs(address, kinds)
    run.write("broker export done.")


def _print_files(run: Invocation, kinds: list[str]) -> None:
    if not run.has("t"):
        run.line("local mode Invalid args, please input configType")
        raise ConfigError("option -t is missing")
    directory, kind = Path(run.text("p")), kinds[0]
    if not directory.exists():
        run.line("Rocksdb path is invalid.")
        return
    content = _content(directory / kind, kind)
    file = run.get("e")
    if file is not None:
        Path(file).write_bytes(fastjson.dumps(content, pretty=True))
    elif (run.get("j") or "").lower() == "false":
        number = 0
        for table, rows in content.items():
            run.write(f"type: {table}")
            for name, value in rows.items():
                number += 1
                run.line(f"{number}, Key: {name}, Value: {fastjson.dumps(value).decode()}")
    else:
        run.line(fastjson.dumps(content, pretty=True).decode())


def _content(path: Path, kind: str) -> dict[str, Any]:
    families = (DEFAULT,) if kind == "consumerOffsets" else (DEFAULT, VERSION_FAMILY)
    content: dict[str, Any] = {}
    with closing(open_database(path, families)) as database:
        rows = {key.decode(): fastjson.loads(value) for key, value in database.tables[DEFAULT].rows()}
        if VERSION_FAMILY in database.tables:
            version = database.tables[VERSION_FAMILY].get(VERSION_KEY)
            if version is not None:
                content["dataVersion"] = fastjson.loads(version)
    if kind == "consumerOffsets":
        rows = {name: value.get("offsetTable", {}) for name, value in rows.items()}
    content[KINDS[kind]] = rows
    return hashed(content)


async def check_queues(run: Invocation) -> None:
    """Make each broker compare its queues in RocksDB with its queues in files."""
    since = run.number("cf", run.clock.now_ms() - CHECKED_MS)
    info = await run.admin.cluster()
    if run.text("c") not in info.cluster_addr_table:
        run.fail("clusterAddrTable is empty")
        return
    for name in text_order(info.broker_addr_table):
        address = info.broker_addr_table[name].broker_addrs[MASTER_ID]
        found = await run.admin.brokers.check_queues(address, run.get("t") or "", since)
        if found.check_status == FAILED:
            why = f"errInfo: {found.check_result}"
            run.fail(f"{name} check error, please check log... {why}")
        else:
            run.line(f"{name} check doing, please wait and get the result from log... ")
