"""How a client gets in: with whose key it signs its requests, and how it encrypts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

from firearrow.errors import ConfigError
from firearrow.net.tlsciphers import choose
from firearrow.wire.signature import Credentials


@dataclass(frozen=True, slots=True)
class Tls:
    """How to encrypt. Without ``verify`` any certificate will do, as RocketMQ's clients have it."""

    ca_file: str | None = None  # None: the authorities that the system trusts
    certificate_file: str | None = None  # ours, for servers that want to know their clients
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    protocols: str = ""  # TLSv1.2, TLSv1.3 or both, joined by a comma
    ciphers: str = ""  # by Java's names or OpenSSL's, joined by commas; empty: OpenSSL's choice

    def context(self) -> ssl.SSLContext:
        """Read the files; ConfigError names the one that can't be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"TLS authorities {self.ca_file}: {error}") from None
        choose(context, self.protocols, self.ciphers)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file is not None:
            files = f"{self.certificate_file} with key {self.key_file or 'in the same file'}"
            try:
                load_chain(context, self.certificate_file, self.key_file, self.key_password)
            except (OSError, ValueError) as error:
                raise ConfigError(f"TLS certificate {files}: {error}") from None
        return context


def load_chain(context: ssl.SSLContext, certificate: str, key: str | None, password: str | None) -> None:
    """Have a context show a certificate; ValueError for a key with another password, or with one
    where none is given: OpenSSL would ask for it whoever has started the process."""
    asked: list[str] = []

    def answer() -> str:
        asked.append(password or "")
        return password or ""

    try:
        context.load_cert_chain(certificate, key, answer)
    except (OSError, ValueError):
        if asked:
            has = "another password than that" if password else "a password"
            raise ValueError(f"its key has {has}") from None
        raise


@dataclass(frozen=True, slots=True)
class Access:
    """How a client gets in: signed, encrypted, both or neither. It can be pickled."""

    credentials: Credentials | None = None
    tls: Tls | None = None


OPEN: Final = Access()
