"""Several brokers of one command: what each is told, and which directories fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.cli.main import main
from firearrow.cli.serving.brokerprocesses import BrokerProcess, ControlFile, read_control
from firearrow.cli.serving.supervisor import wait_seconds
from firearrow.config import properties
from firearrow.errors import ConfigError
from tests.cli.serving.test_settings import plan


def serve_keys(*words: str) -> dict[str, dict[str, str]]:
    return {it.name: it.pairs for it in plan("serve", "--brokers", "3", *words).brokers}


def test_each_has_a_name_ports_and_a_directory_of_its_own(tmp_path: Path) -> None:
    found = serve_keys("--store", str(tmp_path), "--set", "metricsPromExporterPort=6000")
    assert list(found) == ["broker-a", "broker-b", "broker-c"]
    for number, (name, pairs) in enumerate(found.items()):
        assert pairs["brokerName"] == name
        assert pairs["listenPort"] == str(10911 + 10 * number)
        assert pairs["metricsPromExporterPort"] == str(6000 + number)
        assert pairs["storePathRootDir"] == str(tmp_path / name)
        assert pairs["autoCreateTopicOnAll"] == "true"


def test_ports_that_are_to_be_free_stay_so_and_a_log_elsewhere_is_one_for_each(tmp_path: Path) -> None:
    words = ["--broker-port", "0", "--set", f"storePathCommitLog={tmp_path}/log"]
    found = serve_keys("--store", str(tmp_path), *words)
    assert {pairs["listenPort"] for pairs in found.values()} == {"0"}
    assert found["broker-c"]["storePathCommitLog"] == str(tmp_path / "log" / "broker-c")


@pytest.mark.parametrize("given", ["orders", "orders-a"])
def test_the_name_that_is_given_is_that_of_the_first(tmp_path: Path, given: str) -> None:
    found = serve_keys("--store", str(tmp_path), "--set", f"brokerName={given}")
    assert list(found) == ["orders-a", "orders-b", "orders-c"]


def test_a_key_with_the_name_of_a_broker_is_for_that_one(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("maxMessageSize=3000\nbroker-b.maxMessageSize=2000\nbroker-c.listenPort=7000\n")
    found = serve_keys("-c", str(file), "--store", str(tmp_path / "store"))
    assert [pairs["maxMessageSize"] for pairs in found.values()] == ["3000", "2000", "3000"]
    assert [pairs["listenPort"] for pairs in found.values()] == ["10911", "10921", "7000"]


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        ("broker-b.maxMessageSize=much", "maxMessageSize=much: allowed is"),
        ("broker-b.aclEnable=true", "aclEnable=true asks for the access control of RocketMQ 4"),
        ("broker-b.storePathRootDir=/x", "broker-b.storePathRootDir can't be set"),
        ("brokerName=a/b", "can't be the name of a directory"),
    ],
)
def test_what_one_of_them_can_not_have_is_refused(tmp_path: Path, pair: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why.replace("(", r"\(")):
        serve_keys("--store", str(tmp_path), "--set", pair)


def test_a_key_of_one_that_nobody_knows_is_told(tmp_path: Path) -> None:
    words = ["--store", str(tmp_path), "--set", "broker-b.maxMesageSize=1"]
    [note] = plan("serve", "--brokers", "2", *words).notes
    assert "did you mean maxMessageSize?" in str(note)


def test_all_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--brokers", "2", "--store", str(tmp_path), "-p"]) == 0
    name_server, first, second = capsys.readouterr().out.split("\n# ")
    assert name_server.startswith("# name server\n")
    assert first.startswith("broker-a\n")
    assert properties.loads(second)["listenPort"] == "10921"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_served_as_what_it_is(tmp_path: Path) -> None:
    def refusal(*words: str) -> str:
        with pytest.raises(ConfigError) as refused:
            plan(*words, "--store", str(tmp_path))
        return str(refused.value)

    ControlFile(tmp_path).close()
    plan("serve", "--store", str(tmp_path))  # the start of several failed before there was anything
    for name in ("broker-a", "broker-b", "broker-c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").write_text("lock")
    several = f"{tmp_path} has the stores of broker-a, broker-b, broker-c: serve it with --brokers"
    assert refusal("serve") == refusal("broker") == f"{several} 3"
    assert "has the store of broker-c, which is none of broker-a, broker-b" in refusal("serve", "--brokers", "2")
    plan("serve", "--brokers", "3", "--store", str(tmp_path))
    (tmp_path / "commitlog").mkdir()
    assert f"move what is in it to {tmp_path / 'broker-a'}" in refusal("serve", "--brokers", "3")


def test_who_runs_is_said_as_long_as_it_does(tmp_path: Path) -> None:
    assert read_control(tmp_path) is None
    held = ControlFile(tmp_path)
    held.write({"broker-a": BrokerProcess(1, "127.0.0.1:1"), "broker-b": BrokerProcess(2, "127.0.0.1:2")})
    held.write({"broker-b": BrokerProcess(3, "127.0.0.1:2")})
    told = read_control(tmp_path)
    assert told is not None
    assert told.brokers == {"broker-b": BrokerProcess(3, "127.0.0.1:2")}
    with pytest.raises(ConfigError, match=f"{tmp_path} is in use by process {told.pid}"):
        ControlFile(tmp_path)
    held.close()
    assert read_control(tmp_path) is None


@pytest.mark.parametrize("number", ["0", "27", "many"])
def test_a_number_of_brokers_that_can_not_be(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--brokers", number])
    assert end.value.code == 2
    assert f"{number!r} is no number of brokers: allowed is 1 to 26" in capsys.readouterr().err


def test_who_fails_again_and_again_is_started_ever_later() -> None:
    assert [wait_seconds(failures) for failures in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert wait_seconds(10_000) == 30  # three days and a half
