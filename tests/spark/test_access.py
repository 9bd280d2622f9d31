"""Options that say how brokers are talked to."""

import pytest

from firearrow.errors import ConfigError
from firearrow.net.access import Access, Tls
from firearrow.spark.access import access_of
from firearrow.spark.options import for_sink
from firearrow.wire.signature import Credentials


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
