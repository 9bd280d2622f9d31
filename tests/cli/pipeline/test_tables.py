"""`firearrow pipeline tables` and `serve`, as somebody at a terminal sees them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest
from pyiceberg.catalog import load_catalog

from firearrow.cli.main import main
from tests.lake.test_catalogs import properties
from tests.lake.test_filling import configure, get, numbers, send
from tests.store.stores import opened

LOCAL = ["--master", "local[1]", "--no-progress"]
ICEBERG = ["--topic", "orders", "--schema", "number long", "--format", "iceberg"]


def test_topics_become_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, lake, file = tmp_path / "store", tmp_path / "lake", tmp_path / "lake.toml"
    file.write_text(f'root = "{lake}"\n[[tables]]\ntopics = "orders.*"\nschema = "number long"\n')
    with opened(root) as store:
        configure(root, {"orders": {}, "paid": {"table.format": "delta", "table.schema": "number string"}})
        send(store, "orders", range(5))
        send(store, "paid", range(3))
        assert main(["pipeline", "tables", "--path", str(root), "--file", str(file), "--json", *LOCAL]) == 0
        (report,) = json.loads(capsys.readouterr().out)["tables"]
        assert [(row["table"], row["rows"], row["undecoded"]) for row in report["rows"]] == [
            ("orders", 5, 0),
            ("paid", 3, 0),
        ]
        assert numbers(lake, "orders") == [*range(5)]
        given = ["--path", str(root), "--to", str(lake), "--topic", "paid", "--schema", "number int", *LOCAL]
        assert main(["pipeline", "tables", *given]) == 1
        said = capsys.readouterr().err
        assert said.startswith(
            "firearrow: 1 of 1 tables can't go on: table paid: column number is string, but the new schema has"
        )


def test_topics_become_tables_of_iceberg_in_the_catalog_of_the_file(tmp_path: Path) -> None:
    root, lake, file = tmp_path / "store", tmp_path / "lake", tmp_path / "lake.toml"
    (tmp_path / "warehouse").mkdir()
    catalog = "\n".join(f'{key} = "{value}"' for key, value in properties(tmp_path).items())
    tables = '[[tables]]\ntopics = "orders"\nschema = "number long"\nformat = "iceberg"\n'
    file.write_text(f'root = "{lake}"\n{tables}[catalog]\nnamespace = "lake"\nname = "shop"\necho = false\n{catalog}\n')
    with opened(root) as store:
        configure(root, {"orders": {}})
        send(store, "orders", range(5))
        assert main(["pipeline", "tables", "--path", str(root), "--file", str(file), *LOCAL]) == 0
    found = load_catalog("shop", **properties(tmp_path))
    assert sorted(found.load_table("lake.orders").scan().to_arrow()["number"].to_pylist()) == [*range(5)]
    found.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "the directory of the tables is missing: give --to DIR, or root in the file"),
        (["--to", "LAKE"], "no topic becomes a table: --topic, the file or the attribute table.format name them"),
        (["--to", "LAKE", "--topic", "orders"], "table of 'orders': needs a schema, or a registry and a subject"),
        (["--to", "LAKE", "--topic", "(", "--schema", "a int"], "topics '(': "),
        (["--to", "STORE/lake", "--topic", "orders", "--schema", "a int"], "one is within the other"),
        (["--to", "LAKE", "--option", "tags=a"], "option tags: an archive contains whole queues"),
        (["--to", "LAKE", *ICEBERG], "format = iceberg needs a catalog: --catalog [CATALOG:]NAMESPACE, or [catalog]"),
        (["--to", "LAKE", *ICEBERG, "--catalog", "no:lake"], "catalog no:lake: URI missing, please provide"),
        (["--to", "LAKE", *ICEBERG, "--catalog", "no:"], "catalog no:: the namespace of the tables is missing"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        configure(root, {"orders": {}})
        send(store, "orders", range(2))
    words = [word.replace("LAKE", str(tmp_path / "lake")).replace("STORE", str(root)) for word in given]
    assert main(["pipeline", "tables", "--path", str(root), *words, *LOCAL]) == 1
    assert says in capsys.readouterr().err


def test_an_instance_has_the_name_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--path", str(tmp_path), "--to", str(tmp_path / "lake"), "--topic", "orders", "--schema", "number long"]
    assert main(["pipeline", "serve", *given, "--instance", "a/b", *LOCAL]) == 1
    said = capsys.readouterr().err
    assert said == "firearrow: instance 'a/b': a name consists of letters, digits and . _ -\n"


def test_a_service_shows_its_health_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    with opened(root) as store:
        configure(root, {"orders": {}})
        send(store, "orders", range(5))
        command = [sys.executable, "-m", "firearrow", "pipeline", "serve", "--path", str(root), "--to", str(lake)]
        command += ["--topic", "orders", "--schema", "number long", "--lag", "3600", "--port", "0", *LOCAL]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                found = re.fullmatch(
                    r"firearrow: tables in .*, health at http://127.0.0.1:(\d+)\n", process.stdout.readline()
                )
                assert found is not None
                while get(int(found[1]), "/readyz")[0] != 200:
                    sleep(0.05)
                assert numbers(lake, "orders") == [*range(5)]
                process.send_signal(signal.SIGINT)
                _, said = process.communicate()
            finally:
                process.kill()
        assert process.returncode == 130
        assert said == "firearrow: interrupted\n"
