"""Options of connections to brokers, and a cluster for code that blocks."""

import gc
import os
import threading

import pytest

from firearrow.errors import ClientError, ConfigError
from firearrow.net.access import Access
from firearrow.net.encryption import Tls
from firearrow.spark.access import Cluster, access_of
from firearrow.spark.options import for_sink, parse
from firearrow.spark.source.brokers import BrokerOrigin
from firearrow.wire.signature import Credentials
from tests.client.fakes import fake_cluster

NAME = "firearrow spark"


def given(**options: str) -> Access:
    return access_of(for_sink({"nameServer": "127.0.0.1:9876", **options}).access)


def test_by_default_there_is_neither_signature_nor_encryption() -> None:
    assert given() == Access()


def test_signature_and_encryption() -> None:
    assert given(accessKey="user", secretKey="secret", securityToken="token") == Access(
        Credentials("user", "secret", "token")
    )
    assert given(tls="true", tlsCa="ca", tlsCertificate="c", tlsKey="k", tlsVerify="false") == (
        Access(tls=Tls("ca", "c", "k", verify=False))
    )


@pytest.mark.parametrize(
    ("options", "missing"), [({"accessKey": "user"}, "secretKey"), ({"secretKey": "secret"}, "accessKey")]
)
def test_half_a_pair(options: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigError, match=f"^option {missing} is missing: "):
        given(**options)


def threads() -> list[threading.Thread]:
    return [it for it in threading.enumerate() if it.name == NAME]


def cluster_at(name_server: str, **options: str) -> Cluster:
    given = parse({"nameServer": name_server, **options})
    return Cluster(given.place, given.access)


def test_a_thread_is_there_from_the_first_call_until_the_end_and_again() -> None:
    with fake_cluster("a") as fake:
        cluster = cluster_at(fake.name_server)
        assert threads() == []
        for _ in range(2):
            assert cluster.run(cluster.name_servers.topics()) == ["T"]
            assert len(threads()) == 1
            cluster.close()
            cluster.close()
            assert threads() == []


def test_an_origin_that_is_dropped_leaves_no_thread() -> None:
    with fake_cluster("a") as fake:
        origin = BrokerOrigin(parse({"nameServer": fake.name_server, "subscribe": "T"}))
        origin.bounds()
        assert len(threads()) == 1
        del origin
        gc.collect()
        assert threads() == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_fork_is_refused_and_can_close() -> None:
    with fake_cluster("a") as fake:
        cluster = cluster_at(fake.name_server)
        cluster.run(cluster.name_servers.topics())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                cluster.run(cluster.name_servers.topics())
            except ClientError:
                cluster.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert cluster.run(cluster.name_servers.topics()) == ["T"]
        cluster.close()
