"""The error tree: the classes that users catch, and the messages that they read."""

import pickle

import pytest

from firearrow import errors
from firearrow.errors import BrokerError, FirearrowError, MessageError


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1, errors.BrokerFailed),
        (2, errors.BrokerBusy),
        (3, errors.NotSupported),
        (10, errors.NotDurable),
        (12, errors.NotDurable),
        (16, errors.NotPermitted),
        (17, errors.TopicNotFound),
        (26, errors.GroupNotFound),
        (29, errors.InvalidRequest),
        (1500, errors.BrokerUnavailable),
        (2017, errors.NotPermitted),
    ],
)
def test_a_known_code_has_a_class(code: int, expected: type[BrokerError]) -> None:
    assert BrokerError.lookup(code) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-1000, errors.ClientSideError),
        (202, errors.TransactionRefused),
        (2009, errors.ControllerError),
        (3002, errors.AuthNotFound),
        (3050, errors.AuthNotFound),
        (777, BrokerError),
        (99_999, BrokerError),
    ],
)
def test_other_codes_fall_back_to_their_family(code: int, expected: type[BrokerError]) -> None:
    assert BrokerError.lookup(code) is expected


def test_what_is_not_found_can_be_caught_as_one() -> None:
    for code in (17, 22, 26, 206, 3001):
        assert issubclass(BrokerError.lookup(code), errors.NotFound)


def test_every_error_has_the_root_and_a_description() -> None:
    classes = [thing for thing in vars(errors).values() if isinstance(thing, type)]
    assert len(classes) > 20
    for error in classes:
        assert issubclass(error, FirearrowError)
        assert error.__doc__


def test_every_class_is_drawn_in_the_tree() -> None:
    tree = errors.__doc__ or ""
    for name, thing in vars(errors).items():
        assert not isinstance(thing, type) or name in tree


def test_a_broker_error_names_code_server_and_remark() -> None:
    error = errors.TopicNotFound(17, "No topic route info", "127.0.0.1:9876")
    assert str(error) == "code 17 from 127.0.0.1:9876: No topic route info"
    assert str(BrokerError(1)) == "code 1: no remark"


def test_a_message_error_names_field_and_position() -> None:
    assert str(MessageError("too long", "topic", 88)) == "topic at byte 88: too long"
    assert str(MessageError("too long", "topic")) == "topic: too long"
    assert str(MessageError("not a message")) == "not a message"


@pytest.mark.parametrize(
    "error",
    [BrokerError(2, "busy", "10.0.0.1:10911"), MessageError("too long", "topic", 88)],
    ids=["broker", "message"],
)
def test_errors_cross_process_borders(error: FirearrowError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
