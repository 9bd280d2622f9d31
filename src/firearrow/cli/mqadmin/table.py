"""Commands of `mqadmin`: one row each, in RocketMQ's order, and the help of their options.

A row names the function of the command (``module:function`` of this package) and its options:

    t:topic=!     -t and --topic, with a value, mandatory
    l:list        -l and --list, without a value
    b:brokerAddr=*  c:clusterName=*    exactly one of the options with ``*`` is mandatory (a second set has ``+``)
    :attributes=  only a long form

Each command has ``h:help`` and ``n:namesrvAddr=`` too. Names of commands and options are RocketMQ's, so scripts
continue to work. A row without a function gives the reason why the command is not supported.

Source: RocketMQ's ``MQAdminStartup`` and the ``buildCommandlineOptions`` of its commands.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Option(NamedTuple):
    """One option; exactly one option of a ``group`` is mandatory."""

    short: str
    long: str
    takes_value: bool
    needed: bool = False
    group: str = ""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.short or self.long


class Row(NamedTuple):
    """One command. Without support, ``place`` is empty and ``summary`` gives the reason."""

    name: str
    place: str
    options_text: str
    summary: str

    @property
    def is_supported(self) -> bool:
        """Tell whether Firearrow has the command."""
        return bool(self.place)

    def options(self) -> list[Option]:
        """List the options, including help and the name servers."""
        own = [_option(text) for text in self.options_text.split()]
        shorts = {option.short for option in own}
        return [option for option in _COMMON if option.short not in shorts] + own


def _option(text: str) -> Option:
    short, _, rest = text.partition(":")
    long = rest.rstrip("=!*+")
    group = next((mark for mark in "*+" if mark in rest), "")
    return Option(short, long.replace("_", " "), "=" in rest, "!" in rest, group)


_COMMON: Final = (Option("h", "help", False), Option("n", "namesrvAddr", True))
_PLACES: Final = "b:brokerAddr=* c:clusterName=*"
_ANY_PLACE: Final = "b:brokerAddr= c:clusterName="
_AUTH: Final = "c:clusterName=* b:brokerAddr=*"
_NO_CONTAINER: Final = "Firearrow has no broker containers: each broker is a process"
_NO_COLD: Final = "Firearrow has no flow control of cold data"
_NO_STATIC: Final = "Firearrow has no static topics"

ROWS: Final = (
    Row(
        "updateTopic",
        "topics:update_topic",
        f"{_PLACES} a:attributes= t:topic=! r:readQueueNums= w:writeQueueNums= p:perm= o:order= "
        "u:unit= s:hasUnitSub=",
        "create a topic or change it",
    ),
    Row("updateTopicList", "topics:update_topics", f"{_PLACES} f:filename=!", "create or change the topics in a JSON file"),
    Row("deleteTopic", "topics:delete_topic", "t:topic=! c:clusterName=!", "delete a topic from brokers and name servers"),
    Row(
        "updateSubGroup",
        "groups:update_group",
        f"{_ANY_PLACE} g:groupName=! s:consumeEnable= m:consumeFromMinEnable= "
        "d:consumeBroadcastEnable= o:consumeMessageOrderly= q:retryQueueNums= r:retryMaxTimes= "
        "p:groupRetryPolicy= i:brokerId= w:whichBrokerWhenConsumeSlowly= "
        "a:notifyConsumerIdsChanged= :attributes=",
        "create a consumer group or change it",
    ),
    Row("updateSubGroupList", "groups:update_groups", f"{_PLACES} f:filename=!", "create or change the groups in a JSON file"),
    Row("setConsumeMode", "groups:set_mode", f"{_ANY_PLACE} t:topicName=! g:groupName=! m:mode=! q:popShareQueueNum=", "make a group pull or pop a topic"),
    Row("deleteSubGroup", "groups:delete_group", f"{_ANY_PLACE} g:groupName=! r:removeOffset=", "delete a consumer group"),
    Row("updateBrokerConfig", "servers:update_broker_config", f"{_ANY_PLACE} a:updateAllBroker= k:key=! v:value=!", "change a key of brokers' configuration"),
    Row("updateTopicPerm", "topics:update_perm", f"{_ANY_PLACE} t:topic=! p:perm=!", "change the permission to read and write a topic"),
    Row("topicRoute", "topics:topic_route", "t:topic=! l:list", "show the route of a topic"),
    Row("topicStatus", "topics:topic_status", "t:topic=! c:cluster=", "show the first and last offsets of a topic's queues"),
    Row("topicClusterList", "topics:topic_clusters", "t:topic=!", "list the clusters of a topic"),
    Row("addBroker", "", "c:brokerContainerAddr=! b:brokerConfigPath=!", _NO_CONTAINER),
    Row("removeBroker", "", "c:brokerContainerAddr=! b:brokerIdentity=!", _NO_CONTAINER),
    Row("resetMasterFlushOffset", "servers:reset_flush_offset", "b:brokerAddr= o:offset=", "tell a slave its master's flushed offset"),
    Row("brokerStatus", "servers:broker_status", _PLACES, "show the counters of brokers"),
    Row("queryMsgById", "messages:by_id", "t:topic=! i:msgId=! g:consumerGroup= d:clientId= s:sendMessage= u:unitName= f:bodyFormat= c:cluster=", "show messages by id, push them to a consumer or send them again"),
    Row("queryMsgByKey", "messages:by_key", "t:topic=! k:msgKey=! b:beginTimestamp= e:endTimestamp= m:maxNum= c:cluster= p:keyType= l:lastKey=", "list messages by key or tag"),
    Row("queryMsgByUniqueKey", "messages:by_unique_key", "i:msgId=! g:consumerGroup= d:clientId= t:topic=! a:showAll c:cluster= s:startTime= e:endTime=", "show messages by the unique id of their producer, or push one to a consumer"),
    Row("queryMsgByOffset", "messages:by_offset", "t:topic=! b:brokerName=! i:queueId=! o:offset=! f:bodyFormat= r:routeTopic=", "show the message at an offset of a queue"),
    Row("queryMsgTraceById", "messages:trace", "i:msgId=! t:traceTopic= b:beginTimestamp= e:endTimestamp= c:maxNum=", "show the sender and the consumers of a message"),
    Row("printMsg", "reading:print_topic", "t:topic=! c:charsetName= s:subExpression= b:beginTimestamp= e:endTimestamp= d:printBody= l:lmqParentTopic=", "print the messages of a topic"),
    Row("printMsgByQueue", "reading:print_queue", "t:topic=! a:brokerName=! i:queueId=! c:charsetName= s:subExpression= b:beginTimestamp= e:endTimestamp= p:print_msg= d:printBody= f:calculate=", "print the messages of a queue, or count their tags"),
    Row("sendMsgStatus", "sending:send_status", "b:brokerName=! s:messageSize= c:count=", "send messages to a broker and show the time of each send"),
    Row("brokerConsumeStats", "offsets:broker_progress", "b:brokerAddr=! t:timeoutMillis= l:level= o:order=", "show the progress of all groups of a broker"),
    Row("producerConnection", "groups:producer_connection", "g:producerGroup=! t:topic=!", "list the clients of a producer group"),
    Row("consumerConnection", "groups:consumer_connection", "g:consumerGroup=! b:brokerAddr=", "list the clients of a consumer group"),
    Row("consumerProgress", "offsets:group_progress", "g:groupName= t:topicName= s:showClientIP= c:cluster=", "show the progress of a group, or of all groups"),
    Row("consumerStatus", "groups:consumer_status", "g:consumerGroup=! i:clientId= b:brokerAddr= s:jstack", "show consumers' reports about themselves"),
    Row("cloneGroupOffset", "offsets:clone", "s:srcGroup=! d:destGroup=! t:topic=! o:offline=", "copy a group's offsets to another group"),
    Row("producer", "groups:all_producers", "b:broker=!", "list the producers of a broker"),
    Row("clusterList", "servers:list_clusters", "m:moreStats i:interval= c:clusterName=", "list clusters and brokers"),
    Row("topicList", "topics:topic_list", "c:clusterModel", "list all topics"),
    Row("updateKvConfig", "servers:update_kv", "s:namespace=! k:key=! v:value=!", "set a key of the name servers"),
    Row("deleteKvConfig", "servers:delete_kv", "s:namespace=! k:key=!", "delete a key of the name servers"),
    Row("wipeWritePerm", "servers:wipe_write_perm", "b:brokerName=!", "take the write permission from a broker's routes"),
    Row("addWritePerm", "servers:add_write_perm", "b:brokerName=!", "give the write permission back to a broker's routes"),
    Row("resetOffsetByTime", "offsets:reset", "g:group=! t:topic=! s:timestamp=! f:force= b:broker= q:queue= o:offset= c:cluster=", "reset the offsets of a group to a time"),
    Row("skipAccumulatedMessage", "offsets:skip", "g:group=! t:topic=! f:force= c:cluster=", "reset the offsets of a group to the end of each queue"),
    Row("updateOrderConf", "topics:update_order", "t:topic=! v:orderConf= m:method=!", "show or change the number of queues of an ordered topic"),
    Row("cleanExpiredCQ", "servers:clean_queues", "b:brokerAddr= c:cluster=", "delete queue files whose messages are deleted"),
    Row("deleteExpiredCommitLog", "servers:clean_log", "n:namesrvAddr= b:brokerAddr= c:cluster=", "delete expired log files"),
    Row("cleanUnusedTopic", "servers:clean_topics", "b:brokerAddr= c:cluster=", "delete queues of deleted topics"),
    Row("startMonitoring", "offsets:monitor", "", "log the groups that are behind once a minute, until stopped"),
    Row("statsAll", "offsets:stats_of_all", "a:activeTopic t:topic=", "show rates and counts of topics and groups"),
    Row("allocateMQ", "topics:allocate", "t:topic=! i:ipList=!", "show the queues that each client would get"),
    Row("checkMsgSendRT", "sending:check_times", "t:topic=! a:amount= s:size=", "measure the time of sends to a topic"),
    Row("clusterRT", "sending:cluster_times", "a:amount= s:size= c:cluster= p:print_log= m:machine_room= i:interval=", "measure the time of sends to each broker, until stopped"),
    Row("getNamesrvConfig", "servers:get_namesrv_config", "", "show the configuration of name servers"),
    Row("updateNamesrvConfig", "servers:update_namesrv_config", "k:key=! v:value=!", "change a key of name servers' configuration"),
    Row("getBrokerConfig", "servers:get_broker_config", _PLACES, "show the configuration of brokers"),
    Row("getConsumerConfig", "groups:get_config", "g:groupName=!", "show the configuration of a group on each broker"),
    Row("queryCq", "reading:queue_entries", "t:topic=! q:queue=! i:index=! c:count= b:broker= g:consumer=", "show entries of a queue"),
    Row("sendMessage", "sending:send", "t:topic=! p:body=! k:key= c:tags= b:broker= i:qid= m:msgTraceEnable=", "send a message"),
    Row("consumeMessage", "reading:consume", "t:topic=! b:brokerName= i:queueId= o:offset= g:consumerGroup= s:beginTimestamp= e:endTimestamp= c:MessageNumber=", "print messages without a commit of offsets"),
    Row("updateStaticTopic", "", "c:clusters=* b:brokers=* t:topic=! qn:totalQueueNum=! mf:mapFile= fr:forceReplace=", _NO_STATIC),
    Row("remappingStaticTopic", "", "c:clusters=* b:brokers=* t:topic=! mf:mapFile= fr:forceReplace=", _NO_STATIC),
    Row("exportMetadata", "exports:metadata", "c:clusterName= b:brokerAddr= f:filePath= t:topic g:subscriptionGroup s:specialTopic", "write topics and groups to a JSON file"),
    Row("exportConfigs", "exports:configs", "c:clusterName=! f:filePath=", "write the configuration of a cluster to a JSON file"),
    Row("exportMetrics", "exports:metrics", "c:clusterName=! f:filePath=", "write rates and counts of a cluster to a JSON file"),
    Row("exportMetadataInRocksDB", "rocks:export_metadata", "p:path=! t:configType=! j:jsonEnable=", "print topics or groups of a RocksDB database, from its files"),
    Row("exportPopRecord", "exports:pop_records", "c:clusterName= b:brokerAddr= d:dryRun=", "make brokers move their records of popped messages into the log"),
    Row("haStatus", "servers:ha_status", "c:clusterName= b:brokerAddr= i:interval=", "show the progress of replication"),
    Row("getSyncStateSet", "servers:in_sync", "a:controllerAddress=! c:clusterName= b:brokerName= i:interval=", "show the master and the replicas in sync, as controllers know them"),
    Row("getBrokerEpoch", "servers:epochs", "c:clusterName=* b:brokerName=* i:interval=", "show the masters that wrote the log of brokers in controller mode"),
    Row("getControllerMetaData", "servers:controller_group", "a:controllerAddress=!", "show the leader and the members of the controllers"),
    Row("getControllerConfig", "servers:get_controller_config", "a:controllerAddress=!", "show the configuration of controllers"),
    Row("updateControllerConfig", "servers:update_controller_config", "a:controllerAddress=! k:key=! v:value=!", "change a key of controllers' configuration"),
    Row("electMaster", "servers:elect", "a:controllerAddress=! b:brokerId=! bn:brokerName=! c:clusterName=!", "make a broker the master of its name"),
    Row("cleanBrokerMetadata", "servers:forget", "a:controllerAddress=! b:brokerControllerIdsToClean= bn:brokerName=! c:clusterName= l:cleanLivingBroker", "remove brokers from the controllers' state"),
    Row("dumpCompactionLog", "", "f:file=", "Firearrow has no compacted topics"),
    Row("getColdDataFlowCtrInfo", "", _ANY_PLACE, _NO_COLD),
    Row("updateColdDataFlowCtrGroupConfig", "", f"{_ANY_PLACE} g:consumerGroup=! v:threshold=!", _NO_COLD),
    Row("removeColdDataFlowCtrGroupConfig", "", f"{_ANY_PLACE} g:consumerGroup=!", _NO_COLD),
    Row("setCommitLogReadAheadMode", "", f"{_ANY_PLACE} m:commitLogReadAheadMode=!", "Firearrow chooses the read-ahead of the log itself"),
    Row("createUser", "auth:create_user", f"{_AUTH} u:username=! p:password=! t:userType=", "create a user"),
    Row("updateUser", "auth:update_user", f"{_AUTH} u:username=! p:password=+ t:userType=+ s:userStatus=+", "change a user"),
    Row("deleteUser", "auth:delete_user", f"{_AUTH} u:username=!", "delete a user"),
    Row("getUser", "auth:get_user", f"{_PLACES} u:username=", "show a user"),
    Row("listUser", "auth:list_users", f"{_PLACES} f:filter=", "list users"),
    Row("copyUser", "auth:copy_users", "f:fromBroker=! t:toBroker=! u:usernames=", "copy users from broker to broker"),
    Row("createAcl", "auth:create_acl", f"{_AUTH} s:subject=! r:resources=! a:actions=! i:sourceIp= d:decision=!", "set the permissions of a user"),
    Row("updateAcl", "auth:update_acl", f"{_AUTH} s:subject=! r:resources=! a:actions=! d:decision=! i:sourceIp=", "change the permissions of a user"),
    Row("deleteAcl", "auth:delete_acl", f"{_AUTH} s:subject=! r:resources=", "delete the permissions of a user"),
    Row("getAcl", "auth:get_acl", f"{_PLACES} s:subject=", "show the permissions of a user"),
    Row("listAcl", "auth:list_acls", f"{_PLACES} s:subject= r:resource=", "list the permissions of users"),
    Row("copyAcl", "auth:copy_acls", "f:fromBroker=! t:toBroker=! s:subjects=", "copy permissions of users from broker to broker"),
    Row("rocksDBConfigToJson", "rocks:to_json", "t:configType= p:configPath= e:exportFile= j:jsonEnable= n:nameserverAddr= c:cluster= b:brokerAddr=", "print or write topics, groups and offsets in RocksDB as JSON"),
    Row("checkRocksdbCqWriteProgress", "rocks:check_queues", "c:cluster=! n:nameserverAddr=! t:topic= cf:checkFrom=", "compare queues in RocksDB with queues in files"),
    Row("switchTimerEngine", "servers:set_timer_engine", f"{_PLACES} e:engineType=!", "choose the storage of timed messages"),
    Row("getBrokerLiteInfo", "topics:lite_broker", "b:brokerAddr=* c:cluster=* d:showDetail", "show the totals of lite topics on brokers"),
    Row("getParentTopicInfo", "topics:lite_parent", "p:parentTopic=!", "show the number of a topic's lite topics"),
    Row("getLiteTopicInfo", "topics:lite_topic", "p:parentTopic=! l:liteTopic=! s:showClientId", "show a lite topic"),
    Row("getLiteClientInfo", "topics:lite_client", "p:parentTopic=! g:group=! c:clientId=! s:showDetail", "show a client of lite topics"),
    Row("getLiteGroupInfo", "topics:lite_group", "p:parentTopic=! g:group=! l:liteTopic= k:topK=", "show the lag of a group in lite topics"),
    Row("triggerLiteDispatch", "topics:lite_dispatch", "p:parentTopic=! g:group=! c:clientId= b:brokerName=", "dispatch all lite topics that are ready to a group"),
)  # fmt: skip


def row_of(name: str) -> Row | None:
    """Give the row of a command; its name may be in any case, as in RocketMQ."""
    return next((row for row in ROWS if row.name.lower() == name.lower()), None)


# Most options mean the same in every command.
HELP: Final = {
    "MessageNumber": "number of messages (128)",
    "actions": "some of Pub, Sub, Create, Update, Delete, Get, List",
    "activeTopic": "only topics with messages of today",
    "amount": "number of messages (100)",
    "attributes": "changes of attributes: +name=value or -name, joined by commas",
    "beginTimestamp": "from this time on: ms since 1970 or yyyy-MM-dd#HH:mm:ss:SSS",
    "body": "body of the message, as UTF-8",
    "bodyFormat": "print the body in this character set",
    "broker": "a broker: its address, or its name where a message is sent",
    "brokerAddr": "address of a broker",
    "brokerConfigPath": "configuration file of the broker",
    "brokerContainerAddr": "address of a container",
    "brokerControllerIdsToClean": "ids of brokers, joined by ;",
    "brokerId": "id of the broker to consume from",
    "brokerIdentity": "cluster:broker:id",
    "brokerName": "name of a broker",
    "brokers": "names of brokers, joined by commas",
    "calculate": "true: count the tags",
    "charsetName": "character set of bodies (UTF-8)",
    "checkFrom": "from this store time on, ms since 1970 (30 days ago)",
    "cleanLivingBroker": "include brokers that are alive",
    "clientId": "id of a client",
    "cluster": "name of a cluster; for a light topic its parent topic",
    "clusterModel": "with clusters and consumer groups",
    "clusterName": "name of a cluster",
    "clusters": "names of clusters, joined by commas",
    "commitLogReadAheadMode": "0: random, 1: sequential",
    "configPath": "directory that contains the databases `topics` and others",
    "configType": "topics, subscriptionGroups or consumerOffsets, joined by ;",
    "consumeBroadcastEnable": "true: the group may broadcast",
    "consumeEnable": "false: the group may not consume",
    "consumeFromMinEnable": "true: a new group begins at the first message",
    "consumeMessageOrderly": "true: the group pops in order",
    "consumer": "a consumer group, to show its subscription",
    "consumerGroup": "name of a consumer group",
    "controllerAddress": "address of a controller",
    "count": "number of messages or entries",
    "decision": "Allow or Deny",
    "destGroup": "the group that gets the offsets",
    "dryRun": "false: only print the brokers and change nothing, as in RocketMQ",
    "endTime": "until this store time, ms since 1970",
    "endTimestamp": "until this time: ms since 1970 or yyyy-MM-dd#HH:mm:ss:SSS",
    "engineType": "R for RocksDB, F for files",
    "exportFile": "write to this file",
    "file": "a file",
    "filePath": "directory to write to (/tmp/rocketmq/export)",
    "filename": "a JSON file with a list",
    "filter": "only names that contain this text",
    "force": "false: only back, never forward (true)",
    "forceReplace": "true: replace an existing map",
    "fromBroker": "address of the broker to copy from",
    "group": "name of a consumer group",
    "groupName": "name of a consumer group",
    "groupRetryPolicy": "when messages are retried, as JSON",
    "hasUnitSub": "true: the topic has subscriptions of other units",
    "help": "print this help",
    "index": "first offset to show",
    "interval": "seconds between two rounds",
    "ipList": "clients, joined by commas",
    "jsonEnable": "print as JSON: true or false",
    "jstack": "with the stacks of its threads",
    "key": "a key",
    "keyType": "K: keys, T: tags (K)",
    "lastKey": "continue after this key of the index",
    "level": "only queues with at least this lag, in messages",
    "list": "as a table",
    "liteTopic": "name of a lite topic",
    "lmqParentTopic": "parent topic, whose route a light topic uses",
    "machine room": "a name for the log (noname)",
    "mapFile": "file with the map of queues",
    "maxNum": "limit of messages (64)",
    "messageSize": "bytes of a message (128)",
    "method": "get, put or delete",
    "mode": "PULL or POP",
    "moreStats": "with counts of today and yesterday",
    "msgId": "id of a message; several are joined by commas",
    "msgKey": "key or tag of messages",
    "msgTraceEnable": "true: trace the message (not supported)",
    "nameserverAddr": "addresses of name servers, joined by ;",
    "namesrvAddr": "addresses of name servers, joined by ; (NAMESRV_ADDR)",
    "namespace": "namespace of the key",
    "notifyConsumerIdsChanged": "true: the broker notifies clients when one joins or leaves",
    "offline": "also topics that the group does not subscribe to now",
    "offset": "an offset",
    "order": "true: ordered",
    "orderConf": "queues by broker: broker-a:4;broker-b:4",
    "parentTopic": "the parent of lite topics",
    "password": "a password",
    "path": "directory of the database",
    "perm": "2: write, 4: read, 6: both",
    "popShareQueueNum": "number of additional clients that share a queue in pop mode",
    "print log": "true: one line with | for each broker",
    "print msg": "true: print the messages",
    "printBody": "false: without the bodies",
    "producerGroup": "name of a producer group",
    "qid": "number of a queue, together with a broker",
    "queue": "number of a queue",
    "queueId": "number of a queue",
    "readQueueNums": "number of queues to read (8)",
    "removeOffset": "true: also its offsets",
    "resource": "only resources whose names contain this text",
    "resources": "resources, joined by commas: Topic:name, Group:name",
    "retryMaxTimes": "limit of retries of a message (16)",
    "retryQueueNums": "number of queues of the retry topic (1)",
    "routeTopic": "the topic whose route a light topic uses",
    "sendMessage": "true: send the messages again",
    "showAll": "all messages with the id, not only the first",
    "showClientIP": "true: with the client of each queue",
    "showClientId": "with the clients",
    "showDetail": "with all names",
    "size": "bytes of a message (128)",
    "sourceIp": "source addresses of the permission, joined by commas",
    "specialTopic": "also retry and dead-letter topics",
    "srcGroup": "the group whose offsets are taken",
    "startTime": "from this store time on, ms since 1970",
    "subExpression": "tags, joined by || (*)",
    "subject": "a user, as User:name",
    "subjects": "users, as User:name, joined by commas",
    "subscriptionGroup": "only groups",
    "tags": "tag of the message",
    "threshold": "bytes a second",
    "timeoutMillis": "timeout in ms (50000)",
    "timestamp": "a time: now, ms since 1970 or yyyy-MM-dd#HH:mm:ss:SSS",
    "toBroker": "address of the broker to copy to",
    "topK": "limit of the list of the worst ones (20)",
    "topic": "name of a topic",
    "topicName": "name of a topic",
    "totalQueueNum": "number of queues",
    "traceTopic": "the topic of traces (RMQ_SYS_TRACE_TOPIC)",
    "unit": "true: the topic is of a unit",
    "unitName": "name of the unit",
    "updateAllBroker": "slaves too",
    "userStatus": "enable or disable",
    "userType": "Super or Normal",
    "username": "name of a user",
    "usernames": "names of users, joined by commas",
    "value": "the value",
    "whichBrokerWhenConsumeSlowly": "id of the broker to consume from when slow",
    "writeQueueNums": "number of queues to write (8)",
}

OF_COMMANDS: Final = {
    ("exportMetadata", "topic"): "only topics",
    ("sendMessage", "key"): "keys of the message, separated by blanks",
    ("sendMessage", "broker"): "name of the broker to send to",
    ("getLiteClientInfo", "showDetail"): "with its lite topics",
}


def help_of(command: str, long_name: str) -> str:
    """Give the help of an option of a command."""
    return OF_COMMANDS.get((command, long_name)) or HELP[long_name]
