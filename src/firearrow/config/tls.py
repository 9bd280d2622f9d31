"""Encryption of servers: keys that RocketMQ has as properties of the JVM, with the same names.

Here they are keys like all others (`--set tls.server.mode=enforcing`). They are also read from the variables that
RocketMQ's start scripts read (`JAVA_OPT_EXT="-Dtls.server.mode=enforcing"`), and from the file that ``tls.config.file``
names. The file counts first, the variables last.

Source: RocketMQ's ``TlsSystemConfig``, ``TlsHelper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from firearrow.config import properties
from firearrow.config.demands import jvm_properties
from firearrow.config.table import OptionalPath, ServerConfig, keys
from firearrow.errors import ConfigError

Names = Annotated[str, Meta(pattern=r"[\w.,\s-]*", title="names, separated by commas")]

CONFIG_FILE: Final = "/etc/rocketmq/tls.properties"
_PLACE: Final = "tls.config.file"
_NOT_IN_FILE: Final = frozenset({"tls.server.mode", "tls.enable", _PLACE})


class TlsKeys(ServerConfig, frozen=True):
    """Certificate that a server shows to its clients, and encryption of the calls that it makes."""

    # fmt: off
    tls_server_mode: Annotated[Literal["disabled", "permissive", "enforcing"], "whether clients may encrypt (permissive, with `tls.server.certPath` or `tls.test.mode.enable`) or must"] = field(name="tls.server.mode", default="permissive")
    tls_server_cert_path: Annotated[OptionalPath, "file with the server's certificate and those it rests on (PEM); it is read again when it changes"] = field(name="tls.server.certPath", default="")
    tls_server_key_path: Annotated[OptionalPath, "file with its key (PEM); empty: it is in the same file"] = field(name="tls.server.keyPath", default="")
    tls_server_key_password: Annotated[str, "the password of that key, if it has one"] = field(name="tls.server.keyPassword", default="")
    tls_test_mode_enable: Annotated[bool, "whether a server without `tls.server.certPath` makes itself a certificate for this run, which nobody can verify"] = field(name="tls.test.mode.enable", default=False)
    tls_protocols: Annotated[Names, "versions that are spoken, by the server's own calls as well: `TLSv1.2,TLSv1.3`; empty: both"] = field(name="tls.protocols", default="")
    tls_ciphers: Annotated[Names, "ciphers of both, by Java's names or OpenSSL's; empty: OpenSSL's choice. Of TLS 1.3 there are all or none"] = field(name="tls.ciphers", default="")
    tls_server_need_client_auth: Annotated[Literal["none", "optional", "require"], "whether clients show a certificate; one that is shown must be signed by `tls.server.trustCertPath`"] = field(name="tls.server.need.client.auth", default="none")
    tls_server_trust_cert_path: Annotated[OptionalPath, "file with the authorities that sign clients' certificates"] = field(name="tls.server.trustCertPath", default="")
    tls_enable: Annotated[bool, "whether the server's own calls, to name servers above all, are encrypted; they are if `tls.server.mode` is enforcing"] = field(name="tls.enable", default=False)
    use_tls: Annotated[bool, "the same"] = field(name="useTLS", default=False)
    tls_client_auth_server: Annotated[bool, "whether the servers that it calls must show a certificate for their address; false: any certificate will do"] = field(name="tls.client.authServer", default=False)
    tls_client_trust_cert_path: Annotated[OptionalPath, "file with the authorities that sign it; empty: those that the system trusts"] = field(name="tls.client.trustCertPath", default="")
    tls_client_cert_path: Annotated[OptionalPath, "file with the certificate that it shows itself"] = field(name="tls.client.certPath", default="")
    tls_client_key_path: Annotated[OptionalPath, "file with the key of that; empty: it is in the same file"] = field(name="tls.client.keyPath", default="")
    tls_client_key_password: Annotated[str, "the password of that key, if it has one"] = field(name="tls.client.keyPassword", default="")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse values that would keep out every client, or leave a check without effect."""
        has_certificate = self.tls_server_cert_path or self.tls_test_mode_enable
        if self.tls_server_mode == "enforcing" and not has_certificate:
            # Java: TlsHelper makes a certificate unless tls.test.mode.enable is false.
            raise ConfigError(
                "tls.server.mode=enforcing needs tls.server.certPath (or, for trials, tls.test.mode.enable=true)"
            )
        if self.tls_server_need_client_auth != "none" and not self.tls_server_trust_cert_path:
            need = self.tls_server_need_client_auth
            raise ConfigError(
                f"tls.server.need.client.auth={need} needs tls.server.trustCertPath: without it "
                "any certificate would do"
            )


TLS_FIELDS: Final = tuple(key.field for key in keys(TlsKeys).values())


def with_tls(pairs: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the pairs of a server, together with the TLS pairs from the environment and from the TLS file.

    Raises ConfigError for a file that can't be read, except if the file at its usual place is missing.
    """
    found = {key: value for _, key, value in jvm_properties(environment)} | dict(pairs)
    path = Path(found.pop(_PLACE, "") or CONFIG_FILE)
    if path == Path(CONFIG_FILE) and not path.is_file():
        return found
    own = properties.load(path)
    return found | {key: value for key, value in own.items() if key.startswith("tls.") and key not in _NOT_IN_FILE}
