"""Every request code has its row, what is served has a handler, and what is not admitted has none
called."""

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from firearrow.auth.metadata import Metadata
from firearrow.broker.access.feature import auth_handlers
from firearrow.broker.admission import NOT_YET, Admission, Check
from firearrow.broker.config import BrokerConfig
from firearrow.broker.sending.processor import SendProcessor
from firearrow.clock import SystemClock
from firearrow.controller.agreement import PEER_MESSAGES
from firearrow.controller.config import ControllerConfig
from firearrow.controller.metrics import ControllerTally
from firearrow.controller.processor import ControllerProcessor
from firearrow.errors import BrokerError
from firearrow.namesrv.config import NamesrvConfig
from firearrow.namesrv.kv import KvConfig
from firearrow.namesrv.processor import Processor
from firearrow.namesrv.routes import RouteTables
from firearrow.net.server import Answer, Handler, Peer, PeerRequest, Server
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response, request
from firearrow.wire.frame import AnyCommand, encode_response
from firearrow.wire.requests import REQUESTS, Ask, Row, ServedBy, Trait, Unread
from tests.broker.serving import Serving, in_virtual_time
from tests.net.talker import talking

CODES_OF_5_5_0 = 164
CODES_OF_5_5_1 = 2
OWN_CODES = {RequestCode.FOLLOW_STATE, RequestCode.DELETE_SUBSCRIPTION, RequestCode.NEWEST_HANDLE}
IN_CONTROLLER_TOO = {RequestCode.BROKER_HEARTBEAT, PEER_MESSAGES}
DEAD = {13, 22, 23, 27, 47, *range(209, 215), 301, 302, 200072}


READ_ANSWERS = {RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS}
"""Handlers that read what clients answer them."""


def handlers_of_broker(root: Path) -> dict[int, Handler]:
    """All handlers of a broker, without anything around them."""
    found: dict[int, Handler] = {}

    async def main(served: Serving, _: Any) -> None:
        for feature in served.broker.features:
            for handlers in (feature.handlers(), feature.saved_handlers()):
                assert not found.keys() & handlers.keys(), "two features answer one code"
                found.update({int(code): handler for code, handler in handlers.items()})

    in_virtual_time(root, main)
    return found


def handlers_of_name_server(root: Path) -> Mapping[int, Handler]:
    config, clock = NamesrvConfig(), SystemClock()
    routes = RouteTables(clock, lambda: config, lambda change: None)
    return Processor(config, clock, routes, KvConfig(root / "kv.json")).handlers()


def handlers_of_controller() -> Mapping[int, Handler]:
    config = ControllerConfig(
        controller_d_leger_group="g", controller_d_leger_peers="n0-127.0.0.1:1", controller_d_leger_self_id="n0"
    )
    nothing = cast(Any, None)
    tally = ControllerTally(SystemClock().monotonic)
    return ControllerProcessor(config, nothing, nothing, nothing, nothing, tally).handlers()


def test_every_code_has_a_row_with_all_its_columns() -> None:
    assert len(RequestCode) - len(OWN_CODES) == CODES_OF_5_5_0 + CODES_OF_5_5_1
    assert REQUESTS.keys() == set(RequestCode)
    for code, row in REQUESTS.items():
        assert row.code is code
        assert isinstance(row.served_by, ServedBy)
        assert row.header is None or isinstance(row.header, type)
        assert row.body is None or isinstance(row.body, type)
        assert all(isinstance(ask, Ask) for ask in row.asks)
        assert isinstance(row.traits, Trait)


def test_who_serves_something_says_what_permission_it_takes() -> None:
    free = {ServedBy.NOBODY, ServedBy.CLIENT}
    silent = {code for code, row in REQUESTS.items() if not row.asks and row.served_by not in free}
    assert silent == set()
    assert {code for code, row in REQUESTS.items() if row.served_by is ServedBy.NOBODY} == DEAD


def test_handlers_are_of_codes_that_their_server_has(tmp_path: Path) -> None:
    in_broker, in_name_server = handlers_of_broker(tmp_path), handlers_of_name_server(tmp_path)
    with_users = auth_handlers(cast(Metadata, None), BrokerConfig(), follows=False)
    assert NOT_YET.keys() > with_users.keys()  # without users there are none of these
    assert {REQUESTS[RequestCode(code)].served_by for code in in_broker} == {ServedBy.BROKER}
    of_name_server = {code for code, row in REQUESTS.items() if row.served_by is ServedBy.NAME_SERVER}
    assert in_name_server.keys() == of_name_server
    of_controller = {code for code, row in REQUESTS.items() if row.served_by is ServedBy.CONTROLLER}
    assert handlers_of_controller().keys() == of_controller | IN_CONTROLLER_TOO
    of_broker = {code for code, row in REQUESTS.items() if row.served_by is ServedBy.BROKER}
    assert in_broker.keys() | NOT_YET.keys() == of_broker
    assert not in_broker.keys() & NOT_YET.keys()


def test_what_a_handler_reads_is_what_the_table_says(tmp_path: Path) -> None:
    handlers = [
        *handlers_of_broker(tmp_path).items(),
        *handlers_of_name_server(tmp_path).items(),
        *handlers_of_controller().items(),
        *auth_handlers(cast(Metadata, None), BrokerConfig(), follows=False).items(),
    ]
    for code, handler in handlers:
        if code == PEER_MESSAGES:  # controllers' own
            continue
        row = REQUESTS[RequestCode(code)]
        assert row.header is not Unread, code
        assert row.body is not Unread, code
        read = types_read_by(handler)
        if row.header is not None:
            assert row.header.__name__ in read["fields_of"], (code, read)
        else:
            assert not read["fields_of"], (code, read)
        if row.body is not None and row.body is not bytes:
            assert row.body.__name__ in read["body_of"] | read["decode"], (code, read)
        elif code not in READ_ANSWERS:
            assert not read["body_of"], (code, read)


def types_read_by(handler: Handler) -> dict[str, set[str]]:
    """The names of the types that a handler, or what it calls of its own, reads a request by."""
    read: dict[str, set[str]] = {"fields_of": set(), "body_of": set(), "decode": set()}
    seen: set[Callable[..., Any]] = set()
    todo: list[Callable[..., Any]] = [handler]
    while todo:
        function = inspect.unwrap(todo.pop())
        if function in seen:
            continue
        seen.add(function)
        owner = getattr(function, "__self__", None)
        names = {} if owner is None else {name: getattr(owner, name, None) for name in dir(owner)}
        module = inspect.getmodule(function)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)
            called = called.removesuffix("_in_steps")
            if called in read:
                texts = [ast.unparse(it) for it in (*node.args, node.func)]
                read[called] |= {word for text in texts for word in re.split(r"\W+", text)}
            elif called.startswith("_"):
                inner = names.get(called) or getattr(module, called, None)
                if inspect.isroutine(inner):
                    todo.append(inner)
    return read


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


# --- admission ---


def not_from_master(row: Row) -> Check | None:
    def check(peer: Peer, command: AnyCommand) -> None:
        if command.body == b"no":
            raise BrokerError(ResponseCode.NO_PERMISSION, f"{row.code.name} is not admitted")

    return check if row.traits & Trait.MASTERS else None


@pytest.mark.parametrize("bodies", [[b"no"], [b"go"], [b"go", b"go"], [b"go", b"no", b"go"]], ids=str)
def test_a_condition_is_asked_before_the_handler(bodies: list[bytes]) -> None:
    """However many requests come in one read, and also where several are handled together."""
    handled: list[bytes] = []
    together: list[int] = []

    def handle(peer: Peer, command: AnyCommand) -> Response:
        handled.append(command.body)
        return Response(remark="handled")

    def handle_all(requests: Any) -> list[bytes]:
        together.append(len(cast(list[PeerRequest], requests)))
        return [encode_response(Response(remark="together"), r.opaque) for _, r in requests]

    admission = Admission([not_from_master])
    send, query = int(RequestCode.SEND_BATCH_MESSAGE), int(RequestCode.QUERY_MESSAGE)

    async def main() -> None:
        server = Server(
            admission.before({send: handle, query: handle}),
            SystemClock(),
            bulk_handlers=admission.before_bulk({send: handle_all}),
        )
        port = await server.start("127.0.0.1", 0)
        async with talking(port) as talker:
            talker.ask(*(request(send, body=body, opaque=n) for n, body in enumerate(bodies)))
            answers = [await talker.answer() for _ in bodies]
            talker.ask(request(query, body=b"no"))
            assert (await talker.answer()).remark == "handled"
        await server.stop()
        assert [answer.code for answer in answers] == [16 if b == b"no" else 0 for b in bodies]

    asyncio.run(main())
    admitted = [body for body in bodies if body == b"go"]
    at_once = len(bodies) > 1 and admitted == bodies
    assert handled == ([] if at_once else admitted) + [b"no"]
    assert together == ([len(bodies)] if at_once else [])


def test_without_a_condition_handlers_are_called_directly() -> None:
    def handle(_: Peer, __: AnyCommand) -> Answer:
        return None

    def handle_all(_: Sequence[PeerRequest]) -> None:
        return None

    handlers, bulk = {10: handle}, {10: handle_all}
    assert Admission().before(handlers) is handlers
    assert Admission().before_bulk(bulk) is bulk


def test_no_answer_is_written_out_outside_the_wire() -> None:
    """What an answer looks like, the protocol's version included, is for ``wire`` to know."""
    source = Path(inspect.getfile(SendProcessor)).parent.parent.parent
    outside = [path for path in source.rglob("*.py") if path.parent.name != "wire"]
    assert [path for path in outside if "serializeTypeCurrentRPC" in path.read_text()] == []
