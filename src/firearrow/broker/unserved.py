"""Requests of RocketMQ's that a broker does not serve: they are answered with 3 and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.wire.codes import RequestCode

_TIMER: Final = "there is one kind of timer, in files"
_USERS: Final = (
    "there are no users and no permissions as long as neither authenticationEnabled is true nor an "
    "authenticationMetadataProvider is named"
)
_CONTROLLED: Final = "the broker is not in controller mode (enableControllerMode)"
_ALONE: Final = "no slave acts as master here: enableSlaveActingMaster is false"
_COLD: Final = "reads of old messages are not limited, so there is nothing to configure"
NOT_YET: Final[Mapping[int, str]] = {
    RequestCode.SWITCH_TIMER_ENGINE: _TIMER,
    RequestCode.AUTH_CREATE_USER: _USERS,
    RequestCode.AUTH_UPDATE_USER: _USERS,
    RequestCode.AUTH_DELETE_USER: _USERS,
    RequestCode.AUTH_GET_USER: _USERS,
    RequestCode.AUTH_LIST_USER: _USERS,
    RequestCode.AUTH_CREATE_ACL: _USERS,
    RequestCode.AUTH_UPDATE_ACL: _USERS,
    RequestCode.AUTH_DELETE_ACL: _USERS,
    RequestCode.AUTH_GET_ACL: _USERS,
    RequestCode.AUTH_LIST_ACL: _USERS,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _ALONE,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _ALONE,
    RequestCode.GET_BROKER_EPOCH_CACHE: _CONTROLLED,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _CONTROLLED,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "there are no static topics",
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: "a broker that stops leaves JSON files beside its databases",
}
"""Why a broker does not serve a code that RocketMQ's does."""
