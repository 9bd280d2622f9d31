"""Requests of administrators about consumer groups. Source: RocketMQ's ``AdminBrokerProcessor``."""

from __future__ import annotations

from firearrow.broker.answers import answer_in_steps
from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import ClientChannel
from firearrow.broker.topics.processor import is_version, page_of
from firearrow.errors import BrokerError
from firearrow.message import names
from firearrow.net.server import Answer, Steps
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import GroupReadable
from firearrow.wire.client_bodies import (
    GroupConfigList,
    GroupNames,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    body_of,
)
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import DeleteSubscriptionGroup, ForbidGroup, GetAllSubscriptionGroup, GetSubscriptionGroup


class GroupAdminProcessor:
    """200, 201, 207, 225, 352, 353, 5003."""

    def __init__(self, context: BrokerContext) -> None:
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets

    def put(self, _: ClientChannel, request: AnyCommand) -> Response:
        """200: create a group or change it."""
        config = body_of(request, SubscriptionGroupConfig)
        _check(config)
        self._groups.put(config)
        return Response()

    def put_list(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """225: create or change groups, all or none."""
        configs = body_of(request, GroupConfigList).group_config_list
        for config in configs:
            _check(config)
            yield
        self._groups.put_all(configs)
        return Response()

    def list_all(self, _: ClientChannel, request: AnyCommand) -> Answer:
        """201: all groups, or a page of them (see 21)."""
        header = fields_of(request, GetAllSubscriptionGroup)
        table = self._groups.table
        page = page_of(
            table.keys(),
            header.group_seq,
            header.max_group_num,
            same=is_version(header.data_version, self._groups.data_version),
        )
        body = SubscriptionGroupTable(
            self._groups.data_version, {group: table[group] for group in page}, dict(self._groups.forbidden)
        )
        return answer_in_steps(body, {"totalGroupNum": len(table)})

    def delete(self, _: ClientChannel, request: AnyCommand) -> Response:
        """207: delete a group; one that does not exist is no error."""
        header = fields_of(request, DeleteSubscriptionGroup)
        self._groups.delete(header.group_name)
        if header.clean_offset:
            self._offsets.delete_group(header.group_name)
        return Response()

    def delete_all(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """5003: delete groups, all or none; RocketMQ has it from 5.5.1 on."""
        asked = body_of(request, GroupNames)
        for group in asked.group_name_list:
            if not group.strip() or names.is_system_group(group):
                raise BrokerError(ResponseCode.INVALID_PARAMETER, f"The group[{group}] can't be deleted.")
        for group in asked.group_name_list:
            self._groups.delete(group)
            if asked.clean_offset:
                self._offsets.delete_group(group)
            yield
        return Response()

    def get(self, _: ClientChannel, request: AnyCommand) -> Response:
        """352: the config of a group, which is created if automatic creation is enabled."""
        group = fields_of(request, GetSubscriptionGroup).group
        config = self._groups.find(group)
        if config is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group}")
        return Response(body=fastjson.dumps(config))

    def forbid(self, _: ClientChannel, request: AnyCommand) -> Response:
        """353: forbid a group to read a topic, or allow it; answers the present state.

        Java: AdminBrokerProcessor#updateAndGetGroupForbidden accepts any names, and keeps them.
        """
        header = fields_of(request, ForbidGroup)
        group, topic = header.group, header.topic
        readable = not self._groups.is_read_forbidden(group, topic)
        if header.readable is not None and header.readable != readable:
            self._check_known(group, topic)
            readable = header.readable
            self._groups.forbid_read(group, topic, not readable)
        return Response(body=fastjson.dumps(GroupReadable(group, topic, readable)))

    def _check_known(self, group: str, topic: str) -> None:
        if self._groups.get(group) is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group}")
        if self._topics.get(topic) is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")


def _check(config: SubscriptionGroupConfig) -> None:
    fault = names.validate_group(config.group_name)
    if fault is not None:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
