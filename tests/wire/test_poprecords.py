"""The records of POP, byte for byte as RocketMQ's broker writes them."""

import msgspec

from firearrow.wire.poprecords import Acknowledgement, PopCheckpoint

CHECKPOINT = (
    b'{"bm":0,"bn":"b","c":"G","d":[0,1],"it":60000,"n":2,"pt":1700000000000,"q":3,'
    b'"reviveTime":1700000060000,"ro":0,"so":7,"sp":false,"t":"T"}'
)
ACK = b'{"ao":8,"bn":"b","c":"G","pt":1700000000000,"q":3,"so":7,"t":"T"}'
BATCH = b'{"ao":-1,"aol":[7,8],"c":"G","pt":1700000000000,"q":3,"so":7,"t":"T"}'


def test_a_checkpoint() -> None:
    checkpoint = msgspec.json.decode(CHECKPOINT, type=PopCheckpoint)
    assert msgspec.json.encode(checkpoint) == CHECKPOINT
    assert checkpoint.queue_offsets == [7, 8]
    assert checkpoint.unique_key() == "T@3@7@G@1700000000000@b@ck"


def test_a_checkpoint_without_deltas() -> None:
    checkpoint = msgspec.json.decode(b'{"c":"G","it":1,"n":3,"pt":2,"q":0,"so":5,"t":"T"}', type=PopCheckpoint)
    assert checkpoint.queue_offsets == [5, 6, 7]


def test_an_acknowledgement() -> None:
    ack = msgspec.json.decode(ACK, type=Acknowledgement)
    assert msgspec.json.encode(ack) == ACK
    assert ack.acknowledged == [8]


def test_an_acknowledgement_of_several() -> None:
    ack = msgspec.json.decode(BATCH, type=Acknowledgement)
    assert msgspec.json.encode(ack) == BATCH
    assert ack.acknowledged == [7, 8]
