"""The blocking client: answers to whom they belong, and errors that say what happened."""

from __future__ import annotations

import pickle
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.errors import BrokerUnavailable, ConfigError, NotPermitted
from firearrow.net.access import Access, Tls
from firearrow.net.blocking import UNSENT_BYTES_MAX, BlockingClient
from firearrow.net.server import Answer, Handler, Peer
from firearrow.wire.frame import AnyCommand
from firearrow.wire.signature import Credentials, signature
from tests.net.background import answering, encrypting, in_thread
from tests.net.counterpart import ASK_BACK, ECHO, GO_AWAY, HANG_UP, LAST_FIRST, REFUSE, SILENT, TALK_ROT, Counterpart

HEARD_SECONDS_MAX = 20


class Hearing(Counterpart):
    """Says where it answers, and that it was asked what it never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.has_heard = threading.Event()
        self.address = ""

    def handlers(self) -> dict[int, Handler]:
        return super().handlers() | {SILENT: self.hear}

    def hear(self, peer: Peer, request: AnyCommand) -> Answer:
        self.has_heard.set()
        return None

    def ask_back(self, peer: Peer, request: AnyCommand) -> Answer:
        assert request.opaque == 1  # as that of our call
        return super().ask_back(peer, request)


@pytest.fixture
def counterpart() -> Iterator[Hearing]:
    counterpart = Hearing()
    with in_thread(lambda: answering(counterpart.handlers())) as counterpart.address:
        yield counterpart


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    client = BlockingClient()
    yield client
    client.close()


def test_an_answer_brings_fields_and_body(client: BlockingClient, counterpart: Hearing) -> None:
    answer = client.call(counterpart.address, ECHO, {"n": 1, "b": True}, b"body")
    assert (answer.ext, answer.body) == ({"n": "1", "b": "true"}, b"body")


def test_answers_out_of_order_reach_their_callers_on_one_connection(
    client: BlockingClient, counterpart: Hearing
) -> None:
    pending = [client.begin(counterpart.address, LAST_FIRST, {"n": n}) for n in range(10)]
    assert [each.result().ext["n"] for each in pending] == list(map(str, range(10)))
    assert len({peer for peer, _ in counterpart.held}) == 1
    assert all(each.done() for each in pending)


def test_requests_of_one_kind_can_be_sent_in_one_go(counterpart: Hearing) -> None:
    client = BlockingClient(Access(Credentials("user", "secret")))
    pending = client.begin_all(counterpart.address, ECHO, [{"n": n} for n in range(100)])
    answers = [each.result().ext for each in pending]
    client.close()
    assert [answer["n"] for answer in answers] == list(map(str, range(100)))
    assert len({answer["Signature"] for answer in answers}) == 100


def test_what_is_beyond_the_limit_waits_for_answers(counterpart: Hearing) -> None:
    client = BlockingClient(calls_max=3)
    pending = client.begin_all(counterpart.address, ECHO, [{"n": n} for n in range(10)])
    pending.append(client.begin(counterpart.address, ECHO, {"n": 10}))
    assert [each.result().ext["n"] for each in pending] == list(map(str, range(11)))
    client.close()


def test_a_limit_that_answers_do_not_free_in_time(counterpart: Hearing) -> None:
    client = BlockingClient(calls_max=1, timeout_seconds=0.05)
    first = client.begin(counterpart.address, SILENT)
    lost = f"^the connection to {counterpart.address} is lost: it answered nothing for 0.05 s$"
    with pytest.raises(ConnectionError, match=lost):
        client.begin(counterpart.address, SILENT)
    with pytest.raises(ConnectionError, match=lost):
        first.result()


def test_neither_side_stops_the_other_by_not_reading(client: BlockingClient, counterpart: Hearing) -> None:
    """Far more is under way than sockets hold, both ways, before an answer is asked for."""
    body = bytes(1 << 20)
    count = 8 * UNSENT_BYTES_MAX // len(body)
    pending = [client.begin(counterpart.address, ECHO, {"n": n}, body) for n in range(count)]
    answers = [each.result() for each in pending]
    assert [int(answer.ext["n"]) for answer in answers] == list(range(count))
    assert all(answer.body == body for answer in answers)


def test_a_request_of_the_servers_is_no_answer_and_is_refused(client: BlockingClient, counterpart: Hearing) -> None:
    answer = client.begin(counterpart.address, ASK_BACK, {"code": 40}).answer()
    assert answer.is_response
    assert (answer.code, answer.remark) == (3, " request type 40 not supported")


def test_a_refusal_is_the_error_of_its_code(client: BlockingClient, counterpart: Hearing) -> None:
    with pytest.raises(NotPermitted) as caught:
        client.call(counterpart.address, REFUSE)
    assert str(caught.value) == f"code 16 from {counterpart.address}: not you"
    assert client.begin(counterpart.address, REFUSE).answer().code == 16


def test_an_overdue_answer_ends_the_connection(client: BlockingClient, counterpart: Hearing) -> None:
    client.call(counterpart.address, ECHO)
    other = client.begin(counterpart.address, SILENT)
    late = f"{counterpart.address} did not answer in 0.05 s"
    with pytest.raises(TimeoutError, match=f"^{late}$"):
        client.call(counterpart.address, SILENT, timeout_seconds=0.05)
    lost = f"^the connection to {counterpart.address} is lost: closed, because {late}$"
    with pytest.raises(ConnectionError, match=lost):
        other.result()
    client.call(counterpart.address, ECHO)
    assert len(counterpart.peers) == 2


@pytest.mark.parametrize(("code", "reason"), [(HANG_UP, "closed|reset"), (TALK_ROT, "a frame of 4294967295 bytes")])
def test_a_lost_connection_fails_the_call_and_the_next_opens_another(
    client: BlockingClient, counterpart: Hearing, code: int, reason: str
) -> None:
    with pytest.raises(ConnectionError, match=f"{counterpart.address} is lost: .*({reason})"):
        client.call(counterpart.address, code)
    assert client.call(counterpart.address, ECHO, {"n": 2}).ext == {"n": "2"}


def test_a_server_that_stops_is_asked_on_a_new_connection(client: BlockingClient, counterpart: Hearing) -> None:
    client.call(counterpart.address, ECHO)
    with pytest.raises(BrokerUnavailable, match="bye"):
        client.call(counterpart.address, GO_AWAY)
    client.call(counterpart.address, ECHO)
    assert len(counterpart.peers) == 2


def test_a_connection_that_was_closed_while_idle_is_opened_again(client: BlockingClient) -> None:
    counterpart = Counterpart()
    with in_thread(lambda: answering(counterpart.handlers())) as address:
        client.call(address, ECHO)
    port = int(address.rpartition(":")[2])
    with in_thread(lambda: answering(counterpart.handlers(), port)):
        client.call(address, ECHO)
    assert len(counterpart.peers) == 2


def test_a_server_that_is_not_there(client: BlockingClient) -> None:
    with in_thread(lambda: answering({})) as address:
        pass
    with pytest.raises(ConnectionError, match=f"^{address} can't be reached: "):
        client.call(address, ECHO)


def test_what_is_no_address(client: BlockingClient) -> None:
    with pytest.raises(ConfigError, match="'host' is not an address"):
        client.call("host", ECHO)


def test_requests_are_signed(counterpart: Hearing) -> None:
    client = BlockingClient(Access(Credentials("user", "secret")))
    ext = client.call(counterpart.address, ECHO, {"n": 1}, b"body").ext
    client.close()
    assert ext["AccessKey"] == "user"
    assert ext["Signature"] == signature({"n": "1", "AccessKey": "user"}, b"body", "secret")


# --- TLS ---


@pytest.fixture
def secure(certificate: Path) -> Iterator[str]:
    """The address of a server that speaks TLS, and wants to know its clients."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    with in_thread(lambda: encrypting(Counterpart().handlers(), context)) as address:
        yield address


@pytest.mark.parametrize("verify", [True, False])
def test_encrypted_requests(secure: str, certificate: Path, verify: bool) -> None:
    authorities = str(certificate) if verify else None
    tls = Tls(authorities, str(certificate), verify=verify)
    client = BlockingClient(pickle.loads(pickle.dumps(Access(tls=tls))))
    body = bytes(range(256)) * 8192
    pending = [client.begin(secure, ECHO, {"n": n}, body) for n in range(4)]
    assert [(each.result().ext["n"], each.result().body == body) for each in pending] == [
        (str(n), True) for n in range(4)
    ]
    client.close()


def test_a_certificate_that_nobody_vouches_for(secure: str) -> None:
    client = BlockingClient(Access(tls=Tls()))
    with pytest.raises(ConnectionError, match=f"^{secure} can't be reached by TLS: .*CERTIFICATE"):
        client.call(secure, ECHO)


def test_a_server_without_tls(counterpart: Hearing) -> None:
    client = BlockingClient(Access(tls=Tls(verify=False)))
    with pytest.raises(ConnectionError, match=f"^{counterpart.address} can't be reached by TLS: "):
        client.call(counterpart.address, ECHO)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match=f"^TLS authorities {missing}: "):
        Tls(missing).context()
    with pytest.raises(ConfigError, match=f"^TLS certificate {missing} with key "):
        Tls(certificate_file=missing).context()


def test_closing_fails_what_is_under_way(client: BlockingClient, counterpart: Hearing) -> None:
    pending = client.begin(counterpart.address, SILENT)
    assert counterpart.has_heard.wait(HEARD_SECONDS_MAX)
    client.close()
    with pytest.raises(ConnectionError, match="this side closed it"):
        pending.result()


def test_clients_of_several_threads_do_not_meet(counterpart: Hearing) -> None:
    found: list[str] = []

    def ask(n: int) -> None:
        client = BlockingClient()
        found.append(client.call(counterpart.address, ECHO, {"n": n}).ext["n"])
        client.close()

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["0", "1", "2", "3"]
