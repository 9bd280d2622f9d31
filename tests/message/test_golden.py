"""Every record of the stores that the original broker wrote, against what the Java client read."""

from pathlib import Path

import pytest

from firearrow.message import names
from firearrow.message.batch import BatchMember, encode_batch, split_batch
from firearrow.message.ids import decode_offset_id
from firearrow.message.record import BLANK_BYTES, RECORD_BYTES_MIN, encode_blank, iter_records, verify_crc_property
from tests.golden import ADDED_BY_CLIENT, as_java_prints, expected, extract, golden_names
from tests.message.writing import decode_unique_id, encode_view


class Store:
    """The commit log of one golden store, decoded."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        root = extract(name, directory)
        self.files = {int(path.name): path.read_bytes() for path in sorted((root / "commitlog").iterdir())}
        self.views = {start: list(iter_records(data, check_body_crc=True)) for start, data in self.files.items()}


@pytest.fixture(scope="module", params=golden_names)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    name: str = request.param
    return Store(name, tmp_path_factory.mktemp(name))


def test_every_visible_message_is_decoded_as_the_java_client_does(store: Store) -> None:
    found = {view.physical_offset: view for views in store.views.values() for view in views}
    lines = expected(store.name)
    assert len(lines) > 900
    for line in lines:
        line["properties"] = {key: value for key, value in line["properties"].items() if key not in ADDED_BY_CLIENT}
        assert as_java_prints(found[line["physicalOffset"]]) == line


def test_records_are_where_they_say_and_leave_no_gap(store: Store) -> None:
    for start, views in store.views.items():
        at = start
        for view in views:
            assert view.physical_offset == at
            at += view.store_size


def test_every_file_but_the_last_ends_in_a_blank(store: Store) -> None:
    """The broker that was killed had prepared one more file, still empty."""
    last = max(start for start, views in store.views.items() if views)
    for start, data in store.files.items():
        end = sum(view.store_size for view in store.views[start])
        blank = encode_blank(len(data) - end)
        assert data[end : end + BLANK_BYTES] == (blank if start < last else bytes(BLANK_BYTES))
        assert end + BLANK_BYTES <= len(data)
        assert not any(data[end + BLANK_BYTES :])


def test_records_are_encoded_byte_for_byte(store: Store) -> None:
    """The order of properties is kept, so nothing at all may differ."""
    for start, data in store.files.items():
        for view in store.views[start]:
            at = view.physical_offset - start
            assert view.store_size >= RECORD_BYTES_MIN
            assert encode_view(view) == data[at : at + view.store_size]


def test_no_record_has_a_crc_property(store: Store) -> None:
    for start, data in store.files.items():
        for view in store.views[start][:50]:
            at = view.physical_offset - start
            assert verify_crc_property(data[at : at + view.store_size]) is None


def test_names_and_ids_follow_the_rules(store: Store) -> None:
    for views in store.views.values():
        for view in views:
            assert names.validate_topic(view.topic) is None
            place = decode_offset_id(view.offset_message_id)
            assert place == (view.store_host, view.physical_offset)
            if view.unique_key is not None and "@" not in view.unique_key:
                assert decode_unique_id(view.unique_key).counter >= 0


def test_bodies_can_travel_in_a_batch(store: Store) -> None:
    views = next(iter(store.views.values()))
    members = [BatchMember(view.flag, view.body, b"") for view in views]
    assert split_batch(encode_batch(members)) == members
