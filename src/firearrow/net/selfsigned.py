"""A certificate that a server makes for trials and signs itself.

It is an X.509 certificate of version 1 in DER, with a key on the curve P-256:

    SEQUENCE
        SEQUENCE              serial, algorithm, issuer, validity, subject, public key
        SEQUENCE              ecdsa-with-SHA256
        BIT STRING            the signature: SEQUENCE (r, s)

Only the standard library is available, which can't make one. The key is used once here, so timing differences between
keys don't matter.

Source: RFC 5280, SEC 1; RocketMQ's ``TlsHelper`` makes one by Netty's ``SelfSignedCertificate``.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Final

SUBJECT: Final = "Firearrow, tls.test.mode.enable"

Point = tuple[int, int] | None  # None is the point at infinity

_P: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_INTEGER, _BITS, _OCTETS, _OID, _UTF8, _TIME = 0x02, 0x03, 0x04, 0x06, 0x0C, 0x18
_SEQUENCE, _SET = 0x30, 0x31
_EC_KEY: Final = bytes.fromhex("2a8648ce3d0201")  # 1.2.840.10045.2.1
_P256: Final = bytes.fromhex("2a8648ce3d030107")  # 1.2.840.10045.3.1.7
_ECDSA_SHA256: Final = bytes.fromhex("2a8648ce3d040302")  # 1.2.840.10045.4.3.2
_COMMON_NAME: Final = bytes.fromhex("550403")  # 2.5.4.3
_SINCE, _UNTIL = b"20200101000000Z", b"99991231235959Z"


def self_signed() -> str:
    """Make a key and a certificate of it; return both as PEM."""
    key = 1 + secrets.randbelow(_ORDER - 1)
    public = _bytes_of(_times(key, _BASE))
    algorithm = _der(_SEQUENCE, _der(_OID, _ECDSA_SHA256))
    name = _der(_OID, _COMMON_NAME) + _der(_UTF8, SUBJECT.encode())
    subject = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, name)))
    kind = _der(_SEQUENCE, _der(_OID, _EC_KEY) + _der(_OID, _P256))
    signed = _der(
        _SEQUENCE,
        _integer(secrets.randbits(64))
        + algorithm
        + subject
        + _der(_SEQUENCE, _der(_TIME, _SINCE) + _der(_TIME, _UNTIL))
        + subject
        + _der(_SEQUENCE, kind + _bits(public)),
    )
    certificate = _der(_SEQUENCE, signed + algorithm + _bits(_signature(key, signed)))
    # SEC 1, C.4: version, key, curve, public key.
    private = _der(
        _SEQUENCE,
        _integer(1) + _der(_OCTETS, key.to_bytes(32)) + _der(0xA0, _der(_OID, _P256)) + _der(0xA1, _bits(public)),
    )
    return _pem("EC PRIVATE KEY", private) + _pem("CERTIFICATE", certificate)


def _signature(key: int, data: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(data).digest())
    r = s = 0
    while not (r and s):
        once = 1 + secrets.randbelow(_ORDER - 1)
        point = _times(once, _BASE)
        r = point[0] % _ORDER if point else 0
        s = pow(once, -1, _ORDER) * (digest + r * key) % _ORDER
    return _der(_SEQUENCE, _integer(r) + _integer(s))


def _times(number: int, point: tuple[int, int]) -> Point:
    """Multiply a point.

    The sums are in Jacobian coordinates, x / z² and y / z³, so that only the last step divides: 3 ms, not 35.
    """
    total = 1, 1, 0  # infinity
    for bit in f"{number:b}":
        total = _doubled(*total)
        if bit == "1":
            total = _sum(*total, *point)
    x, y, z = total
    if not z:
        return None
    inverse = pow(z, -1, _P)
    square = inverse * inverse % _P
    return x * square % _P, y * square * inverse % _P


def _doubled(x: int, y: int, z: int) -> tuple[int, int, int]:
    y2, z2 = y * y % _P, z * z % _P
    s = 4 * x * y2
    slope = 3 * (x - z2) * (x + z2) % _P
    x3 = (slope * slope - 2 * s) % _P
    return x3, (slope * (s - x3) - 8 * y2 * y2) % _P, 2 * y * z % _P


def _sum(x1: int, y1: int, z: int, x2: int, y2: int) -> tuple[int, int, int]:
    """Add a point with the third coordinate 1."""
    if not z:
        return x2, y2, 1
    z2 = z * z % _P
    h, r = (x2 * z2 - x1) % _P, (y2 * z2 * z - y1) % _P
    if not h:
        return (1, 1, 0) if r else _doubled(x1, y1, z)
    h2 = h * h % _P
    h3, u = h * h2 % _P, x1 * h2
    x3 = (r * r - h3 - 2 * u) % _P
    return x3, (r * (u - x3) - y1 * h3) % _P, h * z % _P


def _bytes_of(point: Point) -> bytes:
    assert point is not None, "a key is no multiple of the order"
    return b"\x04" + point[0].to_bytes(32) + point[1].to_bytes(32)


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(digits))) + digits + content


def _integer(number: int) -> bytes:
    return _der(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1))


def _bits(content: bytes) -> bytes:
    return _der(_BITS, b"\0" + content)


def _pem(title: str, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {title}-----", *lines, f"-----END {title}-----", ""])
