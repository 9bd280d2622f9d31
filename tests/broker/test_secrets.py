"""No secret leaves a broker: not in an answer, a page, a line of the log or the text of an error.

Each secret here has a word of its own in it, which is looked for everywhere.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.config.properties import loads
from firearrow.config.table import load
from firearrow.errors import ConfigError
from firearrow.logs import JsonFormatter, KeyValueFormatter
from firearrow.wire.codes import RequestCode
from firearrow.wire.signature import Credentials
from tests.broker.everycode import ROWS, as_json, body_of, header_of
from tests.broker.serving import Serving
from tests.broker.signing import AUTHORIZED, Signer, protected, signing
from tests.scrapes import get

CANARY = "Kanarienvogel"
ROOT = Credentials("boss", f"{CANARY} of the boss")
CONFIG: dict[str, Any] = {
    **AUTHORIZED,
    "init_authentication_user": json.dumps({"username": "boss", "password": ROOT.secret_key}),
    "inner_client_authentication_credentials": json.dumps(
        {"accessKey": "inner", "secretKey": f"{CANARY} of the broker", "securityToken": CANARY}
    ),
    "extra": {"initAuthenticationUsr": json.dumps({"username": "slip", "password": CANARY}), "ownPassword": CANARY},
    "metrics_exporter_type": "PROM",
    "metrics_prom_exporter_port": 0,
}
PAGES = ("/healthz", "/readyz", "/metrics", "/varz", "/connz", "/storez", "/none")
TELL_PASSWORDS = {RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER}
"""As upstream's, to whoever may `Get` the cluster (docs/access.md)."""


class _Lines(logging.Handler):
    """Keeps every line, of every level, as both formats have it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [KeyValueFormatter().format(record), JsonFormatter().format(record)]
        self.lines.append(repr(vars(record)))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG)
    handler = _Lines()
    logging.getLogger().addHandler(handler)
    yield handler.lines
    logging.getLogger().removeHandler(handler)


def test_a_broker_tells_no_secret(tmp_path: Path, lines: list[str]) -> None:
    told: list[str] = []

    async def ask_all(signer: Signer, body: Callable[[RequestCode, bytes], bytes]) -> None:
        for row in ROWS:
            if row.code in TELL_PASSWORDS:
                continue
            answer = await signer.call(row.code, header_of(row), body(row.code, body_of(row)))
            told.append(f"{row.code.name} {answer}")

    async def main(served: Serving, _: Signer) -> None:
        async with signing(served, ROOT) as boss:
            made = await boss.call(3001, {"username": "u"}, as_json({"password": CANARY}))
            assert made.code == 0
            await ask_all(boss, lambda code, body: body)
            for text in secrets_in_wrong_places():
                await ask_all(boss, lambda _, __, text=text: text)  # type: ignore[misc]
            assert not any("boss" in line and "3004" in line for line in told)
            shown = await boss.call(3004, {"username": "u"})
            assert CANARY.encode() in shown.body, "it would be seen"
        for credentials in (
            Credentials("u", CANARY),
            Credentials("boss", f"{CANARY} guessed"),
            Credentials("nobody", CANARY),
            None,
        ):
            async with signing(served, credentials) as signer:
                await ask_all(signer, lambda _, body: body)
        told.extend([str(await get(served.broker.operations.port, page)) for page in PAGES])
        told.append(repr(served.broker.settings.broker))
        told.append(str(served.broker.config))
        told.append(served.broker.settings.text())

    protected(tmp_path, main, CONFIG)
    assert len(told) > 5 * len(ROWS)
    assert [text for text in told if CANARY in text] == []
    assert lines
    assert [text for text in lines if CANARY in text] == []


def secrets_in_wrong_places() -> list[bytes]:
    """Bodies that can't be taken as they are, with a secret in them."""
    user = json.dumps({"username": "x", "password": CANARY})
    return [
        as_json({"password": CANARY, "userType": "Emperor"}),
        as_json({"password": [CANARY]}),
        f'{{"password": "{CANARY}'.encode(),
        f"initAuthenticationUser={user}".encode(),
        f"innerClientAuthenticationCredentials={CANARY}".encode(),
        f"initAuthenticationUsr={user}\nbrokerPermission=often".encode(),
        f"tls.server.keyPassword={CANARY}".encode(),
        f"authenticationPassword={CANARY}\\u00zz".encode(),
        f"brokerPermission=6\npassword={CANARY}".encode(),
        CANARY.encode() + b"\xff",
    ]


@pytest.mark.parametrize(
    "line",
    [
        'initAuthenticationUser={"username":"x","password":"$"',
        'initAuthenticationUser={"username":["$"],"password":"$"}',
        'initAuthenticationUser={"username":"x","password":"$\\u00zz"}',
        "innerClientAuthenticationCredentials=$",
        'innerClientAuthenticationCredentials={"accessKey":"x","secretKey":["$"]}',
    ],
)
def test_a_start_that_fails_tells_no_secret(tmp_path: Path, line: str, lines: list[str]) -> None:
    async def main(_: Serving, __: Signer) -> None:
        raise AssertionError("it does not start")

    def start() -> None:
        pairs = {"authenticationEnabled": "true"} | loads(line.replace("$", f"{CANARY} and more"))
        config, _ = load(BrokerConfig, pairs)
        protected(
            tmp_path,
            main,
            {
                "authentication_enabled": True,
                "init_authentication_user": config.init_authentication_user,
                "inner_client_authentication_credentials": (config.inner_client_authentication_credentials),
            },
        )

    with pytest.raises(ConfigError) as caught:
        start()
    assert CANARY not in "".join(map(str, _causes(caught.value)))
    assert [text for text in lines if CANARY in text] == []


def _causes(error: BaseException | None) -> list[BaseException]:
    return [] if error is None else [error, *_causes(error.__cause__)]
