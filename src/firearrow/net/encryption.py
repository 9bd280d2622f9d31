"""Encryption of a client's connections: certificates, versions and ciphers of TLS."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import Final

from firearrow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tls:
    """Encryption of a client's connections. Without ``verify`` any certificate is valid, as for RocketMQ's clients."""

    ca_file: str | None = None  # None: the authorities that the system trusts
    certificate_file: str | None = None  # the client's own, for servers that verify their clients
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    protocols: str = ""  # TLSv1.2, TLSv1.3 or both, joined by a comma
    ciphers: str = ""  # by Java's names or OpenSSL's, joined by commas; empty: OpenSSL's choice

    def context(self) -> ssl.SSLContext:
        """Read the files. ConfigError names the file that can't be used."""
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
    """Load a certificate into a context.

    ValueError for a key with another password, or for an encrypted key without one: OpenSSL would ask on the terminal.
    """
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


# --- Versions and ciphers of TLS ---
#
#     tls.protocols=TLSv1.2,TLSv1.3
#     tls.ciphers=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256,...
#
# OpenSSL's names are accepted, too: its name of the first cipher here is ``ECDHE-RSA-AES128-GCM-SHA256``. The ciphers
# of TLS 1.3 are chosen by another call, which Python has from 3.15 on. Until then all of them are available or, without
# that version, none.
#
# Source: RocketMQ's ``TlsHelper#moreTlsConfig``.


VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# all ciphers that encrypt and verify the server by a certificate
_BY_CERTIFICATE: Final = "ALL:!aNULL:!eNULL:!PSK:!SRP"
_JAVA_NAME: Final = re.compile(r"TLS_(\w+)_WITH_(\w+)")
_SIZE: Final = re.compile(r"(AES|ARIA|CAMELLIA)_(\d+)")


def choose(context: ssl.SSLContext, protocols: str, ciphers: str) -> None:
    """Limit a context to versions and ciphers, joined by commas; an empty text keeps the context's own.

    ConfigError for an unknown name, or for a version that is not supported.
    """
    wanted = _listed(protocols) or list(VERSIONS)
    if not_spoken := [name for name in wanted if name not in VERSIONS]:
        raise ConfigError(f"tls.protocols: {not_spoken[0]!r} is not supported, {' and '.join(VERSIONS)} are")
    if names := _listed(ciphers):
        wanted = _chosen(context, names, wanted)
    versions = [VERSIONS[name] for name in wanted]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _chosen(context: ssl.SSLContext, names: list[str], versions: list[str]) -> list[str]:
    """Set a context's ciphers; return the versions that have any."""
    context.set_ciphers(_BY_CERTIFICATE)
    known = {str(it["name"]): it["protocol"] == "TLSv1.3" for it in context.get_ciphers()}
    found = {_openssl_name(name): name for name in names}
    if unknown := [name for own, name in found.items() if own not in known]:
        raise ConfigError(f"tls.ciphers: there is no cipher {unknown[0]!r}")
    older = [name for name in found if not known[name]]
    newer = {name for name in found if known[name]}
    of_newer = {name for name, is_newer in known.items() if is_newer}
    if newer and newer != of_newer and "TLSv1.3" in versions:
        raise ConfigError(
            "tls.ciphers: the ciphers of TLSv1.3 are all available or none: name "
            f"{', '.join(sorted(of_newer - newer))} as well, or tls.protocols=TLSv1.2"
        )
    if older:
        context.set_ciphers(":".join(older))
    left = [name for name in versions if (newer if name == "TLSv1.3" else older)]
    if not left:
        raise ConfigError(f"tls.ciphers: there is none for {' and '.join(versions)}")
    return left


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a cipher; a name that is not Java's stays the same."""
    match = _JAVA_NAME.fullmatch(name)
    if match is None:
        return name
    exchange = "" if match[1] == "RSA" else match[1] + "-"
    cipher = _SIZE.sub(r"\1\2", match[2]).replace("_CBC", "").replace("CCM_8", "CCM8")
    if "POLY1305" in cipher:
        cipher = cipher.removesuffix("_SHA256")
    return (exchange + cipher).replace("_", "-")
