"""Servers for the clients of RocketMQ 5, and the user that one of them knows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from firearrow.client.admin import Admin
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy, AuthUserInfo
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.signature import Credentials
from tests.interop.servers import AUTHORIZED, CLUSTER_NAME, ROOT, SMALL_FILES, Server, free_port, running
from tests.interop.toolchain import java_command
from tests.patience import patient_environment

SETTINGS: Final[Mapping[str, str]] = {
    **SMALL_FILES,
    "grpcServerPort": "0",
    # Shorter than a user would have it.
    "grpcClientConsumerMinLongPollingTimeoutMillis": "500",
    "grpcClientConsumerMaxLongPollingTimeoutMillis": "5000",  # a client that stops waits for the end of its polls
    "minInvisibleTimeMillsForRecv": "1000",
    "recallMessageEnable": "true",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "transactionCheckInterval": "500",
    "transactionTimeOut": "600",
    "transactionOpBatchInterval": "100",
}
GUARDED: Final[Mapping[str, str]] = {**AUTHORIZED, **SETTINGS}

PROXY_KEYS: Final = ("grpc", "minInvisible")  # begin the keys of the proxy; the others are the broker's
ACCESS_KEYS: Final = ("authenticationEnabled", "authorizationEnabled", "innerClientAuthenticationCredentials")

APP: Final = Credentials("app", "the app's secret")
OWN_TOPIC: Final = "OwnTopic"
OWN_GROUP: Final = "own_"
READ_TOPIC: Final = "ReadTopic"
FOREIGN_TOPIC: Final = "ForeignTopic"


def of_broker(settings: Mapping[str, str]) -> dict[str, str]:
    """Keys of a broker behind a proxy."""
    return {key: text for key, text in settings.items() if not key.startswith(PROXY_KEYS)}


def of_proxy(settings: Mapping[str, str]) -> dict[str, str]:
    """Keys of a proxy in front of a broker."""
    return {key: text for key, text in settings.items() if key.startswith(PROXY_KEYS) or key in ACCESS_KEYS}


@contextmanager
def behind_proxy(server: Server, log: Path, settings: Mapping[str, str], *options: str) -> Iterator[Server]:
    """Run a proxy in front of a server; yield the server with the proxy's addresses.

    It waits for its broker for longer than for a user's: RocketMQ's may take seconds for its first answers.
    """
    words = [word for key, text in settings.items() for word in ("--set", f"{key}={text}")]
    command = [sys.executable, "-m", "firearrow", "proxy", "-n", server.namesrv, "--host", "127.0.0.1"]
    patient = patient_environment(log.parent)
    with running([*command, *options, *words], log, **patient) as process:
        ready = process.wait_for_line("ready ").removeprefix("ready ")
        at = dict(word.split("=") for word in ready.split())
        yield replace(server, grpc=at["grpc"], remoting=at.get("remoting", ""))
        assert process.stop() == 0, f"see {log}"


@contextmanager
def behind_rocketmqs_proxy(server: Server, root: Path) -> Iterator[Server]:
    """Run RocketMQ's own proxy in cluster mode in front of a server; yield the server with the proxy's addresses."""
    (root / "conf").mkdir(parents=True)
    port = free_port(0, 1)
    grpc, remoting = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    keys = {
        "rocketMQClusterName": CLUSTER_NAME,
        "heartbeatSyncerTopicClusterName": CLUSTER_NAME,
        "namesrvAddr": server.namesrv,
        "localServeAddr": "127.0.0.1",
        "grpcServerPort": port,
        "remotingListenPort": port + 1,
    }
    (root / "conf" / "rmq-proxy.json").write_bytes(fastjson.dumps(keys))
    jvm = ("-Xms256m", "-Xmx512m", f"-Duser.home={root}")
    command = java_command("org.apache.rocketmq.proxy.ProxyStartup", "-pm", "cluster", jvm=jvm)
    homes = {"ROCKETMQ_HOME": str(root), "RMQ_PROXY_HOME": str(root)}
    with running(command, root / "proxy.log", **homes) as process:
        process.wait_for_text("rocketmq-proxy startup successfully")
        yield replace(server, grpc=grpc, remoting=remoting)


def admit(server: Server) -> None:
    """Create the user `APP`, with permissions for its topic and its groups."""

    async def admitting() -> None:
        async with Admin.of([server.namesrv], ROOT) as admin:
            for topic in (OWN_TOPIC, READ_TOPIC, FOREIGN_TOPIC):
                await admin.topics.create(server.broker, TopicConfig(topic, 4, 4))
            await admin.auth.create_user(server.broker, AuthUserInfo(APP.access_key, APP.secret_key, "Normal"))
            entries = [
                AuthEntry(resource, actions, decision="Allow")
                for resource, actions in (
                    (f"Topic:{OWN_TOPIC}", ["Pub", "Sub"]),
                    (f"Topic:{READ_TOPIC}", ["Sub"]),
                    (f"Group:{OWN_GROUP}*", ["Sub"]),
                )
            ]
            acl = AuthAcl(f"User:{APP.access_key}", [AuthPolicy("Custom", entries)])
            await admin.auth.create_acl(server.broker, acl)

    asyncio.run(admitting())
