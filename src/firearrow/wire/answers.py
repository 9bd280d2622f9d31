"""The most frequent answers, to sends and pulls, made by templates.

A template spares an answer the dictionary of its fields and the JSON writer: 0.9 µs for a send's
against 3.9. It holds what ``wire.frame.encode_response`` would write, which a test compares. Fields
are in the order of their names.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from firearrow.wire.binary import binary_field, number_field, success_frame
from firearrow.wire.codes import PROTOCOL_VERSION, ResponseCode
from firearrow.wire.command import FieldValue, Response
from firearrow.wire.frame import AnyCommand, encode_json, response_frame

_BEFORE_OPAQUE: Final = '"flag":1,"language":"PYTHON","opaque":'
_BEHIND_OPAQUE: Final = f',"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'
_END: Final = f"{_BEFORE_OPAQUE}%d{_BEHIND_OPAQUE}"


class SendAnswers:
    """The answers to sends, for a broker of a region.

    ``id_prefix`` is the beginning of its offset message ids, all but their last 16 digits.
    ``template`` is the header of an answer in JSON: it takes the physical offset, queue id, queue
    offset, the unique id (which JSON need not escape) and the opaque.
    """

    def __init__(self, region: str, *, trace_on: bool, id_prefix: str) -> None:
        self._region = region
        self._trace = "true" if trace_on else "false"
        self._id_prefix = id_prefix
        json_region = encode_json(region).decode()
        fields = f'"MSG_REGION":{json_region},"TRACE_ON":"{self._trace}"'.replace("%", "%%")
        self.template = (
            f'{{"code":0,"extFields":{{{fields},"msgId":"{id_prefix}%016X","queueId":"%d",'
            f'"queueOffset":"%d","transactionId":"%b"}},{_END}'
        ).encode()
        self._batch_template = (
            f'{{"code":0,"extFields":{{{fields},"msgId":"%b","queueId":"%d","queueOffset":"%d"}},'
            f"{_END}"
        ).encode()
        self._binary_template = b"".join(
            (
                binary_field("MSG_REGION", region).replace(b"%", b"%%"),
                binary_field("TRACE_ON", self._trace),
                binary_field("msgId", f"{id_prefix}{0:016X}")[:-16] + b"%016X",
                number_field("queueId"),
                number_field("queueOffset"),
                binary_field("transactionId") + b"%b%b",
            )
        )

    def binary_frame(
        self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int, unique: bytes
    ) -> bytes:
        """The answer to a send whose header is binary."""
        number, place = b"%d" % queue_id, b"%d" % queue_offset
        fields = self._binary_template % (
            physical_offset,
            len(number),
            number,
            len(place),
            place,
            len(unique).to_bytes(4),
            unique,
        )
        return success_frame(opaque, fields)

    def response(
        self, physical_offset: int, queue_id: int, queue_offset: int, unique: bytes
    ) -> Response:
        """The answer to a send as fields."""
        last = {"transactionId": unique.decode("utf-8", "replace")}
        message_id = f"{self._id_prefix}{physical_offset:016X}"
        return Response(fields=self.fields(message_id, queue_id, queue_offset) | last)

    def batch_frame(self, opaque: int, ids: bytes, queue_id: int, queue_offset: int) -> bytes:
        """The answer to a batch, with the ids of its messages joined by commas."""
        return response_frame(self._batch_template % (ids, queue_id, queue_offset, opaque))

    def batch_response(self, ids: bytes, queue_id: int, queue_offset: int) -> Response:
        """The same as fields."""
        return Response(fields=self.fields(ids.decode(), queue_id, queue_offset))

    def fields(self, ids: str, queue_id: int, queue_offset: int) -> dict[str, FieldValue]:
        """What every answer to a send says; ``ids`` are joined by commas."""
        return {
            "MSG_REGION": self._region,
            "TRACE_ON": self._trace,
            "msgId": ids,
            "queueId": queue_id,
            "queueOffset": queue_offset,
        }


_PULL_FIELDS: Final = ("nextBeginOffset", "minOffset", "maxOffset", "topicSysFlag", "groupSysFlag")
_PULL_BINARY: Final = binary_field("suggestWhichBrokerId", "0") + b"".join(
    map(number_field, _PULL_FIELDS)
)


def pull_answer(
    request: AnyCommand,
    code: int,
    status: Enum,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    topic_flag: int,
    group_flag: int,
    records: bytes,
) -> Response | bytes:
    """The answer to a pull: where it goes on, what its queue has, the flags of topic and group.
    Where nothing was found, the remark is the name of ``status``."""
    if code != ResponseCode.SUCCESS:
        fields = {
            "suggestWhichBrokerId": 0,
            "nextBeginOffset": next_offset,
            "minOffset": min_offset,
            "maxOffset": max_offset,
            "topicSysFlag": topic_flag,
            "groupSysFlag": group_flag,
        }
        return Response(code, status.name, fields, records)
    if request.binary:
        numbers = next_offset, min_offset, max_offset, topic_flag, group_flag
        digits = [b"%d" % number for number in numbers]
        parts = [part for text in digits for part in (len(text), text)]
        return success_frame(request.opaque, _PULL_BINARY % tuple(parts), records)
    header = (
        '{"code":0,"extFields":{"suggestWhichBrokerId":"0",'
        f'"nextBeginOffset":"{next_offset}","minOffset":"{min_offset}","maxOffset":"{max_offset}",'
        f'"topicSysFlag":"{topic_flag}","groupSysFlag":"{group_flag}"}},'
        f"{_BEFORE_OPAQUE}{request.opaque}{_BEHIND_OPAQUE}"
    )
    return response_frame(header.encode(), records)
