"""From options, file and environment to the configuration of each server."""

from pathlib import Path

import pytest

from firearrow.cli.main import build_parser
from firearrow.cli.settings import ServerPlan, reachable
from firearrow.config import properties
from firearrow.errors import ConfigError


def plan(*arguments: str) -> ServerPlan:
    return ServerPlan.from_options(build_parser().parse_args(arguments))


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerName = from-file\nregionId=R3\nlistenPort=20911\nhaHousekeepingInterval=48\n"
    )
    return path


def test_serve_is_embedded_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    embedded = plan("serve")
    assert embedded.namesrv
    assert embedded.broker
    assert embedded.store
    assert (embedded.namesrv.bind_address, embedded.namesrv.listen_port) == ("127.0.0.1", 9876)
    assert (embedded.broker.bind_address, embedded.broker.listen_port) == ("127.0.0.1", 10911)
    assert (embedded.broker.broker_ip1, embedded.broker.broker_ip2) == ("127.0.0.1", "127.0.0.1")
    assert embedded.store.store_path_root_dir == str(tmp_path / "data/store")
    assert embedded.store.store_path_commit_log == str(tmp_path / "data/store/commitlog")
    assert embedded.namesrv.kv_config_path == str(tmp_path / "data/store/namesrv/kvConfig.json")
    assert embedded.notes == []


def test_serve_gives_each_server_its_keys(tmp_path: Path) -> None:
    settings = ["brokerName=b", "scanNotActiveBrokerInterval=200", "maxMessageSize=1024"]
    embedded = plan(
        "serve", "--store", str(tmp_path), *(part for pair in settings for part in ("--set", pair))
    )
    assert embedded.namesrv
    assert embedded.broker
    assert embedded.store
    assert embedded.broker.broker_name == "b"
    assert embedded.namesrv.scan_not_active_broker_interval == 200
    assert embedded.store.max_message_size == 1024
    assert embedded.store.root_path == tmp_path
    assert embedded.notes == []


def test_the_nearer_word_wins(conf: Path) -> None:
    broker = plan(
        "broker",
        "-c",
        str(conf),
        "--set",
        "regionId=R4",
        "--set",
        "listenPort=1",
        "--broker-port",
        "2",
    ).broker
    assert broker
    assert (broker.broker_name, broker.region_id, broker.listen_port) == ("from-file", "R4", 2)


def test_what_has_no_effect_is_kept_and_noted(conf: Path) -> None:
    planned = plan("broker", "-c", str(conf), "--set", "brokerNmae=x")
    assert planned.broker
    assert planned.broker.extra == {"haHousekeepingInterval": "48", "brokerNmae": "x"}
    assert [note.key for note in planned.notes] == ["haHousekeepingInterval", "brokerNmae"]


def test_name_servers_come_from_option_file_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "env:9876")
    path = tmp_path / "broker.conf"
    path.write_text("namesrvAddr=file:9876")
    plans = [plan("broker"), plan("broker", "-c", str(path)), plan("broker", "-n", "a:1;[::1]:2")]
    assert [planned.broker and planned.broker.namesrv_addr for planned in plans] == [
        "env:9876",
        "file:9876",
        "a:1;[::1]:2",
    ]


@pytest.mark.parametrize("addresses", ["a:1", " a:1 ; b:2;", ";a:1;;b:2", "[::1]:9876", ""])
def test_name_servers_may_be_written_loosely(addresses: str) -> None:
    assert plan("broker", "-n", addresses).broker


@pytest.mark.parametrize("address", ["nowhere", "host:", "host:port", "a:1,b:2", "::1:9876"])
def test_a_bad_name_server_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"namesrvAddr=.*: allowed is host:port"):
        plan("broker", "-n", address)


def test_a_name_server_takes_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=9999\nbrokerName=a\nserverWorkerThreads=4\n")
    planned = plan("namesrv", "-c", str(path), "--host", "::1")
    assert planned.namesrv
    assert (planned.namesrv.listen_port, planned.namesrv.bind_address) == (9999, "::1")
    assert planned.namesrv.config_store_path == str(path)
    assert (planned.broker, planned.store) == (None, None)
    assert [str(note) for note in planned.notes] == [
        "unknown key brokerName is kept and has no effect",
        "serverWorkerThreads=4 is known to RocketMQ and has no effect here yet",
    ]


def test_files_that_rocketmq_wrote_in_full_start_without_a_word() -> None:
    written = Path(__file__).parents[1] / "data" / "config"
    assert plan("broker", "-c", str(written / "broker.conf")).notes == []
    assert plan("namesrv", "-c", str(written / "namesrv.conf")).notes == []


@pytest.mark.parametrize("command", ["serve", "namesrv", "broker"])
def test_what_is_asked_for_and_not_there_stops_the_start(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="useTLS=true asks for"):
        plan(command, "--set", "useTLS=true")
    monkeypatch.setenv("JAVA_OPT_EXT", "-Dtls.server.mode=enforcing")
    with pytest.raises(ConfigError, match="JAVA_OPT_EXT: tls"):
        plan(command)


def test_a_broker_announces_what_it_is_told_or_where_it_listens() -> None:
    assert announced("--host", "0.0.0.0", "--set", "brokerIP1=192.0.2.1") == "192.0.2.1"
    assert announced("--host", "127.0.0.1") == "127.0.0.1"
    assert announced() not in {"", "0.0.0.0"}


def announced(*options: str) -> str:
    broker = plan("broker", *options).broker
    assert broker
    return broker.broker_ip1


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_a_wildcard_is_no_address_to_connect_to(wildcard: str) -> None:
    assert reachable(wildcard) not in {"0.0.0.0", "::"}
    assert reachable("example.org") == "example.org"


def test_the_description_is_a_configuration_file(conf: Path, tmp_path: Path) -> None:
    first = plan("broker", "-c", str(conf), "-n", "a:1")
    again = tmp_path / "again.conf"
    again.write_text(first.describe())
    second = plan("broker", "-c", str(again))
    assert (second.broker, second.store) == (first.broker, first.store)
    assert properties.loads(first.describe())["brokerName"] == "from-file"
