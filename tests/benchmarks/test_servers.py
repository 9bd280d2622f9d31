"""What a side is started with: its processes, their places and their keys."""

import socket
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import remoting, servers
from benchmarks.certificate import make_certificate
from benchmarks.errors import BenchmarkError
from benchmarks.process import ServerProcess
from benchmarks.servers import (
    ALONE,
    Broker,
    Deployment,
    Shape,
    firearrow_commands,
    free_ports,
    launch_rocketmq,
    members,
)

FOLLOWED = Shape(followed=True)


def keys_of(command: list[str]) -> dict[str, str]:
    settings = [value for word, value in pairwise(command) if word == "--set"]
    return dict(setting.split("=", 1) for setting in settings)


def test_one_broker_is_one_process() -> None:
    started = members(Path("/run"), ALONE, {"flushDiskType": "SYNC_FLUSH"}, [20000])
    [(name, command)] = firearrow_commands("127.0.0.1:9876", ALONE, started)
    assert (name, command[0]) == ("serve", "serve")
    assert command[command.index("--store") + 1] == "/run/store"
    assert keys_of(command)["haListenPort"] == "20001"
    assert keys_of(command)["flushDiskType"] == "SYNC_FLUSH"
    assert "brokerRole" not in keys_of(command)


def test_a_slave_has_its_masters_name_and_keys_but_for_its_role() -> None:
    keys = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
    started = members(Path("/run"), FOLLOWED, keys, [20000, 30000])
    (_, leads), (name, follows) = firearrow_commands("127.0.0.1:9876", FOLLOWED, started)
    assert name == "broker-a-slave"
    assert follows[follows.index("-n") + 1] == "127.0.0.1:9876"
    assert keys_of(leads)["brokerRole"] == "SYNC_MASTER"
    assert keys_of(follows)["brokerRole"] == "SLAVE"
    same = ("brokerName", "inSyncReplicas")
    assert [keys_of(leads)[key] for key in same] == [keys_of(follows)[key] for key in same]
    assert len({it.store for it in started}) == 2


def test_several_brokers_have_a_name_server_of_their_own() -> None:
    shape = Shape(brokers=2)
    started = members(Path("/run"), shape, {}, [20000, 30000])
    commands = firearrow_commands("127.0.0.1:9876", shape, started)
    assert [name for name, _ in commands] == ["namesrv", "broker-a", "broker-b"]


def test_the_original_is_told_of_a_certificate_as_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    commands: list[list[str]] = []
    monkeypatch.setattr(ServerProcess, "start", lambda command, *_: commands.append([*map(str, command)]))
    shape = Shape(followed=True, certificate=certificate)
    made = launch_rocketmq(Path("java"), Path("jars"), tmp_path / "run", shape, {"a": "b"})
    assert len(commands) == 3
    assert all(f"-Dtls.server.certPath={certificate.path}" in command for command in commands)
    slave = (tmp_path / "run" / "broker-a-slave.conf").read_text().splitlines()
    assert {"brokerRole=SLAVE", "brokerId=1", "a=b", f"namesrvAddr={made.namesrv}"} <= {*slave}
    assert made.certificate is certificate
    assert [len(made.brokers), len(made.slaves)] == [1, 1]


def test_ports_keep_apart() -> None:
    ports = sorted(free_ports(8))
    assert all(after - before > servers.NEIGHBOURS for before, after in pairwise(ports))
    assert set(ports) <= set(servers.SERVER_PORTS)


def test_no_port_is_given_twice() -> None:
    assert not {*free_ports(8)} & {*free_ports(8)}


def test_a_port_has_free_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    with socket.create_server(("127.0.0.1", first + 1)):
        monkeypatch.setattr(servers, "_ports", lambda: iter([first, second]))
        assert free_ports(1) == [second]
        with pytest.raises(BenchmarkError, match="1 of 2 ports"):
            free_ports(2)


def test_a_side_is_ready_when_its_slaves_have_all(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[], [512], [0]]
    monkeypatch.setattr(remoting, "lags", lambda _: answers.pop(0))
    master, slave = Broker("a", "127.0.0.1:1"), Broker("a", "127.0.0.1:2")
    Deployment("side", [], "", (master,), Path(), (slave,)).wait_copied()
    assert answers == []
    monkeypatch.setattr(remoting, "lags", lambda _: [512])
    monkeypatch.setattr(servers, "READY_TIMEOUT_S", 0)
    with pytest.raises(BenchmarkError, match="slaves that have the whole log"):
        Deployment("side", [], "", (master,), Path(), (slave,)).wait_copied()
