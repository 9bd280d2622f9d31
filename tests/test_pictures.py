"""Pictures of the console: small files of 256 colours at most, each on a page, none left over.

Pictures of terminals have the present headings and sentences of their commands.
"""

from __future__ import annotations

import re
import struct
import zlib
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from numpy.typing import NDArray

from firearrow.cli.health.lag import KEYS, VALUES
from firearrow.cli.health.top import BROKERS, GROUPS, TOPICS
from firearrow.cli.output.reports import heading
from firearrow.client.diagnosis import grouprules
from tests.pages import DOCS
from tools.palettepng import SIGNATURE, chunk, chunks, with_palette
from tools.terminalpictures import COMMANDS, Screen, picture_of

BYTES_MAX = 120_000
COLOURS = np.array([[0, 0, 0], [255, 255, 255], [180, 60, 10], [250, 249, 7]], np.uint8)


def test_each_picture_is_on_the_page_and_small() -> None:
    named = re.findall(r"\]\(pictures/([\w-]+\.png)\)", (DOCS / "console.md").read_text(encoding="utf-8"))
    found = {path.name: path.stat().st_size for path in (DOCS / "pictures").glob("*.png")}
    assert sorted(named) == sorted(found)
    assert [name for name, size in found.items() if size > BYTES_MAX] == []


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("kind", range(5))
def test_a_picture_of_few_colours_keeps_them(kind: int, channels: int) -> None:
    chosen = np.random.default_rng(kind).integers(0, len(COLOURS), (6, 9))
    assert (pixels_of(with_palette(png(COLOURS[chosen], kind, channels))) == COLOURS[chosen]).all()


def test_a_picture_of_many_colours_keeps_the_frequent_ones() -> None:
    pixels = np.zeros((20, 20, 3), np.uint8)
    pixels[:, :15, 0] = np.arange(300).reshape(20, 15) // 2
    pixels[:, :15, 1] = np.arange(300).reshape(20, 15) % 2 + 1
    pixels[:, 15:] = COLOURS[2]
    found = pixels_of(with_palette(png(pixels, 0, 3)))
    assert (found[:, 15:] == COLOURS[2]).all()
    assert len(np.unique(found.reshape(-1, 3), axis=0)) == 256


def terminal(command: str) -> list[str]:
    """Return the lines of a command's picture, without the title of its window."""
    texts = ET.fromstring(picture_of(command).read_text(encoding="utf-8")).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()) for text in texts][1:]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_is_on_a_page_and_begins_with_its_command(command: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    assert pages.count(f"](pictures/{picture_of(command).name})") == 1
    assert terminal(command)[0] == f"$ {command}"


def test_terminals_show_what_commands_print_today() -> None:
    assert " ".join(terminal("firearrow lag")[1].split()) == " ".join(map(heading, (*KEYS["group"], *VALUES)))
    assert grouprules.THRESHOLDS in " ".join(terminal("firearrow doctor"))
    top = terminal("firearrow top")
    for columns in (BROKERS[:-1], GROUPS, TOPICS):
        assert f"{' '.join(map(heading, columns))} trend" in [" ".join(line.split()) for line in top]


def test_a_picture_of_a_live_command_has_its_last_screen() -> None:
    screen = Screen()
    for text in (
        "$ top\r\n\x1b[?1049h\x1b[?25l\x1b[H1\x1b[K\r\n\x1b[K\x1b[J",
        "\x1b[H2\x1b[K\r\n3",
        "\x1b[K\x1b[J\x1b[?1049l$ ",
    ):
        screen.feed(text, 1.0)
    assert screen.frames == 2
    assert [line.text for line in screen.picture().content] == ["$ top", "2", "3"]


def png(pixels: NDArray[np.uint8], kind: int, channels: int) -> bytes:
    """Write a picture with one filter for all lines, byte by byte as the standard says."""
    height, width, _ = pixels.shape
    flat = np.full((height, width, channels), 255, int)
    flat[:, :, :3] = pixels
    lines = flat.reshape(height, -1)
    out = bytearray()
    for y in range(height):
        out.append(kind)
        for x in range(width * channels):
            left = int(lines[y, x - channels]) if x >= channels else 0
            up = int(lines[y - 1, x]) if y else 0
            corner = int(lines[y - 1, x - channels]) if y and x >= channels else 0
            near = min((left, up, corner), key=lambda it: abs(left + up - corner - it))
            guess = (0, left, up, (left + up) // 2, near)[kind]
            out.append((int(lines[y, x]) - guess) & 255)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(out))), (b"IEND", b""))
    return SIGNATURE + b"".join(chunk(*part) for part in parts)


def pixels_of(picture: bytes) -> NDArray[np.uint8]:
    """Read a picture with a palette and no filter."""
    parts = dict(chunks(picture))
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    palette = np.frombuffer(parts[b"PLTE"], np.uint8).reshape(-1, 3)
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    return palette[lines[:, 1:]]
