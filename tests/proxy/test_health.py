"""Health by gRPC's own client."""

from collections.abc import Iterator

import grpc
import pytest

from firearrow.proxy import grpcmessages as m
from firearrow.proxy.health import Health
from tests.proxy.channels import Client, serving

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@pytest.fixture
def health() -> Health:
    return Health(["shop.Orders"])


@pytest.fixture
def client(health: Health) -> Iterator[Client]:
    with serving(health.methods()) as client:
        yield client


def checked(client: Client, service: str) -> int:
    response: m.HealthCheckResponse = client.unary(CHECK, m.HealthCheckRequest(service=service), m.HealthCheckResponse)
    return response.status


def test_known_services_have_the_status_of_the_server(client: Client, health: Health) -> None:
    assert [checked(client, name) for name in ("", "shop.Orders", "grpc.health.v1.Health")] == [SERVING] * 3
    client.on_loop(lambda: health.change(is_serving=False))
    assert checked(client, "shop.Orders") == NOT_SERVING


def test_an_unknown_service_is_not_found(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        checked(client, "shop.Ghosts" * 1000)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert caught.value.details().startswith("there is no service shop.Ghosts")


def test_bytes_that_are_no_message_are_refused(client: Client) -> None:
    class Torn:
        def SerializeToString(self) -> bytes:
            return b"\x0a\xff"

    with pytest.raises(grpc.RpcError) as caught:
        client.unary(CHECK, Torn(), m.HealthCheckResponse)
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == "the bytes are no HealthCheckRequest"


def test_a_watch_tells_the_status_and_its_changes(client: Client, health: Health) -> None:
    call = client.streamed(WATCH, m.HealthCheckRequest(service="shop.Orders"), m.HealthCheckResponse)
    assert next(call).status == SERVING
    for is_serving in (True, False, False, True):
        client.on_loop(lambda to=is_serving: health.change(is_serving=to))  # type: ignore[misc]
    assert [next(call).status for _ in range(2)] == [NOT_SERVING, SERVING]
    call.cancel()


def test_a_watch_of_an_unknown_service_goes_on(client: Client, health: Health) -> None:
    call = client.streamed(WATCH, m.HealthCheckRequest(service="shop.Ghosts"), m.HealthCheckResponse)
    assert next(call).status == SERVICE_UNKNOWN
    client.on_loop(lambda: health.change(is_serving=False))
    assert call.is_active()
    call.cancel()


def test_a_cancelled_watch_is_forgotten(client: Client, health: Health) -> None:
    call = client.streamed(WATCH, m.HealthCheckRequest(), m.HealthCheckResponse)
    assert next(call).status == SERVING
    assert health.watching == 1
    call.cancel()
    while health.watching:
        checked(client, "")
    assert health.watching == 0
