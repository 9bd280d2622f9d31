"""An example or more of every command: in its help, and in the documentation; and the help of `firearrow` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "firearrow": (
        "firearrow serve",
        "firearrow topics",
        "firearrow send orders hello",
        "firearrow cat orders --since 1h",
        "firearrow --context production lag billing",
        "firearrow store stat data/store",
    ),
    "firearrow serve": (
        "firearrow serve",
        "firearrow serve --store /var/lib/rocketmq --host 0.0.0.0",
        "firearrow serve --set flushDiskType=SYNC_FLUSH --log-level warning",
        "firearrow serve --ephemeral --until-stdin-closes",
        "firearrow serve --brokers 3 --set broker-b.flushDiskType=SYNC_FLUSH",
    ),
    "firearrow namesrv": ("firearrow namesrv", "firearrow namesrv -c namesrv.conf --port 9877"),
    "firearrow namesrv list": ("firearrow namesrv list -n '10.0.0.1:9876;10.0.0.2:9876'",),
    "firearrow namesrv brokers": ("firearrow namesrv brokers --json",),
    "firearrow namesrv keys": ("firearrow namesrv keys", "firearrow namesrv keys MY_NAMESPACE"),
    "firearrow controller": (
        "firearrow controller -c controller.conf",
        "firearrow controller -c controller.conf --set controllerDLegerSelfId=n1 --host 10.0.0.2",
    ),
    "firearrow broker": (
        "firearrow broker -c broker.conf",
        "firearrow broker -n '10.0.0.1:9876;10.0.0.2:9876' --store /var/lib/rocketmq",
        "firearrow broker -c broker.conf --set brokerIP1=192.0.2.7 -p",
    ),
    "firearrow broker list": ("firearrow broker list --json",),
    "firearrow broker show": ("firearrow broker show broker-a",),
    "firearrow broker stats": ("firearrow broker stats --cluster DefaultCluster",),
    "firearrow broker disk": ("firearrow broker disk", "firearrow broker disk --json"),
    "firearrow broker retention": ("firearrow broker retention --cluster DefaultCluster",),
    "firearrow proxy": (
        "firearrow proxy -n 10.0.0.1:9876 --grpc-port 8081",
        "firearrow proxy -pc rmq-proxy.json --workers 4",
    ),
    "firearrow topic": ("firearrow topic list", "firearrow topic create orders --queues 4"),
    "firearrow topic list": ("firearrow topic list", "firearrow topic list 'order*' --csv"),
    "firearrow topic show": ("firearrow topic show orders",),
    "firearrow topic create": (
        "firearrow topic create orders --queues 4",
        "firearrow topic create payments --type TRANSACTION",
    ),
    "firearrow topic delete": ("firearrow topic delete orders", "firearrow topic delete orders --apply"),
    "firearrow topic undo": ("firearrow topic undo firearrow-undo-orders-20260131T080000Z.json",),
    "firearrow topic stats": ("firearrow topic stats orders",),
    "firearrow topic health": ("firearrow topic health orders",),
    "firearrow topic routes": ("firearrow topic routes orders -n 10.0.0.1:9876",),
    "firearrow group": ("firearrow group list", "firearrow group clients billing"),
    "firearrow group list": ("firearrow group list 'bill*'",),
    "firearrow group show": ("firearrow group show billing --json",),
    "firearrow group create": (
        "firearrow group create billing --retries 3",
        "firearrow group create billing --disabled",
    ),
    "firearrow group delete": ("firearrow group delete billing --apply",),
    "firearrow group undo": ("firearrow group undo firearrow-undo-billing-20260131T080000Z.json --apply",),
    "firearrow group clients": ("firearrow group clients billing",),
    "firearrow client": ("firearrow client show billing 10.0.0.7@4711#1",),
    "firearrow client show": ("firearrow client show billing 10.0.0.7@4711#1",),
    "firearrow client topics": ("firearrow client topics billing 10.0.0.7@4711#1 --json",),
    "firearrow client queues": ("firearrow client queues billing 10.0.0.7@4711#1",),
    "firearrow client stacks": ("firearrow client stacks billing 10.0.0.7@4711#1",),
    "firearrow client consume": (
        "firearrow client consume billing 10.0.0.7@4711#1 7F0000010B7C18B4AAC2549A66B10001 --topic orders --apply",
    ),
    "firearrow producer": ("firearrow producer list --topic orders",),
    "firearrow producer list": ("firearrow producer list --topic orders", "firearrow producer list 'shop*'"),
    "firearrow message": (
        "firearrow message send orders '{\"id\": 17}' --tag paid --key o-17",
        "firearrow message tail orders",
    ),
    "firearrow message send": (
        "firearrow message send orders '{\"id\": 17}' --tag paid --key o-17",
        "firearrow message send orders --file body.bin --delay 300",
    ),
    "firearrow message cat": (
        "firearrow message cat orders --since 2026-01-31T08:00:00 --json",
        "firearrow message cat orders --tag 'paid || refunded' --limit 10",
    ),
    "firearrow message list": (
        "firearrow message list orders --limit 10",
        "firearrow message list orders --property region=eu --containing A-7",
    ),
    "firearrow message tail": ("firearrow message tail orders --last 2",),
    "firearrow message get": (
        "firearrow message get 7F000001004218B4AAC216E4F3D60000 --topic orders",
        "firearrow message get --topic orders --key o-17",
    ),
    "firearrow message trace": ("firearrow message trace 7F000001004218B4AAC216E4F3D60000",),
    "firearrow message way": ("firearrow message way 7F000001004218B4AAC216E4F3D60000 --topic orders",),
    "firearrow message pending": (
        "firearrow message pending reminders --limit 10",
        "firearrow message pending --by time --every 10m",
    ),
    "firearrow message recall": (
        "firearrow message recall reminders djEgVCBicm9rZXItYSAxNzk1MDAwMDAwMDAxIFUx --apply",
    ),
    "firearrow message resend": ("firearrow message resend 7F000001004218B4AAC216E4F3D60000 --topic orders --apply",),
    "firearrow lag": ("firearrow lag", "firearrow lag billing --by queue", "firearrow lag billing --filtered --json"),
    "firearrow offset": ("firearrow offset get billing", "firearrow offset reset billing orders --to latest"),
    "firearrow offset get": ("firearrow offset get billing --topic orders",),
    "firearrow offset seek": ("firearrow offset seek billing orders 4711 --broker broker-a --queue 0 --apply",),
    "firearrow offset reset": (
        "firearrow offset reset billing orders --to 2026-01-31T08:00:00",
        "firearrow offset reset billing orders --to latest --apply --undo-file undo.json",
    ),
    "firearrow offset clone": ("firearrow offset clone billing billing2 --apply",),
    "firearrow offset undo": ("firearrow offset undo undo.json --apply",),
    "firearrow transaction": ("firearrow transaction list", "firearrow transaction list --parked"),
    "firearrow transaction list": ("firearrow transaction list orders --limit 10",),
    "firearrow transaction resume": ("firearrow transaction resume 7F00000100002A9F000000000012D687 --apply",),
    "firearrow dlq": ("firearrow dlq list", "firearrow dlq resend billing --key o-17 --apply"),
    "firearrow dlq list": ("firearrow dlq list",),
    "firearrow dlq inspect": ("firearrow dlq inspect billing --limit 10",),
    "firearrow dlq resend": (
        "firearrow dlq resend billing --containing timeout",
        "firearrow dlq resend billing --all --to orders-again --apply",
    ),
    "firearrow cluster": ("firearrow cluster list", "firearrow cluster restart"),
    "firearrow cluster list": ("firearrow cluster list --context production",),
    "firearrow cluster drain": ("firearrow cluster drain broker-b --deadline 600",),
    "firearrow cluster undrain": ("firearrow cluster undrain broker-b",),
    "firearrow cluster undo": ("firearrow cluster undo undo.json --apply",),
    "firearrow cluster restart": ("firearrow cluster restart", "firearrow cluster restart broker-b --deadline 30"),
    "firearrow lite": ("firearrow lite list",),
    "firearrow lite list": ("firearrow lite list --json",),
    "firearrow lite quotas": ("firearrow lite quotas",),
    "firearrow lite lag": ("firearrow lite lag chats --top 20",),
    "firearrow lite show": ("firearrow lite show chat room-17",),
    "firearrow lite client": ("firearrow lite client chat chats 10.0.0.7@4711#1",),
    "firearrow pop": ("firearrow pop show billing", "firearrow pop invisible billing"),
    "firearrow pop show": ("firearrow pop show billing",),
    "firearrow pop invisible": ("firearrow pop invisible billing", "firearrow pop invisible billing --limit 0 --json"),
    "firearrow pop revive": ("firearrow pop revive",),
    "firearrow user": ("firearrow user list", "firearrow user create nina --password-file nina.secret --apply"),
    "firearrow user list": ("firearrow user list", "firearrow user list 'shop*' --json"),
    "firearrow user create": (
        "firearrow user create nina --password-file nina.secret --apply",
        "firearrow user create nina --disabled --apply",
    ),
    "firearrow user delete": ("firearrow user delete nina --apply",),
    "firearrow user undo": ("firearrow user undo firearrow-undo-nina-20260131T080000Z.json --apply",),
    "firearrow acl": ("firearrow acl list --user nina", "firearrow acl test nina sub Topic:orders"),
    "firearrow acl list": ("firearrow acl list", "firearrow acl list --resource orders"),
    "firearrow acl allow": (
        "firearrow acl allow nina Topic:orders --action pub --apply",
        "firearrow acl allow nina 'Group:shop*' --action sub --from 10.0.0.0/8 --apply",
    ),
    "firearrow acl deny": ("firearrow acl deny nina Topic:payments --action all",),
    "firearrow acl remove": ("firearrow acl remove nina Topic:orders --apply",),
    "firearrow acl undo": ("firearrow acl undo firearrow-undo-nina-20260131T080000Z.json --apply",),
    "firearrow acl test": ("firearrow acl test nina pub Topic:orders --from 10.1.2.3",),
    "firearrow replica": ("firearrow replica list",),
    "firearrow replica list": ("firearrow replica list", "firearrow replica list --cluster DefaultCluster --json"),
    "firearrow replica sets": ("firearrow replica sets --controller 10.0.0.3:9878",),
    "firearrow replica controllers": ("firearrow replica controllers",),
    "firearrow replica elect": (
        "firearrow replica elect 10.0.0.2:10911",
        "firearrow replica elect 10.0.0.2:10911 --apply",
    ),
    "firearrow replica undo": ("firearrow replica undo firearrow-undo-broker-a-20260131T080000Z.json --apply",),
    "firearrow config": ("firearrow config get 'flush*'", "firearrow config set fileReservedTime=48 --all-brokers"),
    "firearrow config explain": (
        "firearrow config explain 'flush*' --broker broker-a",
        "firearrow config explain --different --name-servers",
    ),
    "firearrow config get": (
        "firearrow config get 'flush*' --broker broker-a",
        "firearrow config get --name-servers --json",
    ),
    "firearrow config set": ("firearrow config set fileReservedTime=48 --all-brokers --apply",),
    "firearrow config undo": ("firearrow config undo firearrow-undo-config-20260131T080000Z.json --apply",),
    "firearrow completion": ("firearrow completion bash",),
    "firearrow context": ("firearrow context add local --name-server 127.0.0.1:9876 --use", "firearrow context list"),
    "firearrow context list": ("firearrow context list --json",),
    "firearrow context add": (
        "firearrow context add production --name-server '10.0.0.1:9876;10.0.0.2:9876'",
        (
            "firearrow context add secured --name-server 10.0.0.1:9876 --access-key admin "
            "--secret-file /home/me/.rocketmq-secret --tls"
        ),
    ),
    "firearrow context use": ("firearrow context use production",),
    "firearrow context remove": ("firearrow context remove production",),
    "firearrow errors": ("firearrow errors 17", "firearrow errors FLUSH_DISK_TIMEOUT"),
    "firearrow check": (
        "firearrow check",
        "firearrow check --brokers 2 --disk 70:90 --lag 1000:100000 --lag-seconds 60:600",
        "firearrow check --only dead-letters --new-dead :1 --json",
    ),
    "firearrow console": (
        "firearrow console",
        "firearrow console -n 10.0.0.1:9876 --port 8088",
        "firearrow console --context production --host 0.0.0.0 --name console.example.com",
        "firearrow console --webhook https://alerts.example/hook",
        "firearrow console --host 0.0.0.0 --name console.example.com --openid openid.toml",
    ),
    "firearrow sql": (
        "firearrow sql 'SELECT tag, count(*) FROM orders GROUP BY tag'",
        "firearrow sql \"SELECT body->>'$.customer' AS customer FROM orders\" --since 2026-11-01 --csv",
        "firearrow sql 'SELECT sum(cents) FROM orders' --lake /srv/lake",
    ),
    "firearrow mcp": (
        "firearrow mcp",
        "firearrow mcp --context production --http 8089",
        "firearrow mcp --allow-changes",
    ),
    "firearrow doctor": (
        "firearrow doctor",
        "firearrow doctor billing",
        "firearrow doctor billing orders --json",
        "firearrow doctor sends orders",
    ),
    "firearrow top": ("firearrow top", "firearrow top --once --interval 5"),
    "firearrow bench": ("firearrow bench produce", "firearrow bench round-trip --rate 1000"),
    "firearrow bench produce": (
        "firearrow bench produce",
        "firearrow bench produce --in-flight 256 --size 1024 --seconds 60 --json",
        "firearrow bench produce --batch 32 --count 100000",
    ),
    "firearrow bench consume": ("firearrow bench consume --count 100000",),
    "firearrow bench pop": ("firearrow bench pop --in-flight 16",),
    "firearrow bench round-trip": ("firearrow bench round-trip --rate 1000 --seconds 30",),
    "firearrow bench transaction": ("firearrow bench transaction --in-flight 16",),
    "firearrow mqadmin": ("firearrow mqadmin clusterList -n 10.0.0.1:9876", "firearrow mqadmin help topicStatus"),
    "firearrow store": ("firearrow store stat data/store", "firearrow store verify data/store"),
    "firearrow store stat": ("firearrow store stat data/store --queues",),
    "firearrow store cat": (
        "firearrow store cat data/store --topic Orders --limit 10",
        "firearrow store cat data/store --key order-4711 --since 2026-01-31T08:00:00",
    ),
    "firearrow store verify": (
        "firearrow store verify data/store --json",
        "firearrow store verify /mnt/store --spark spark://master:7077 --report verify.html",
    ),
    "firearrow store repair": (
        "firearrow store repair data/store",
        "firearrow store repair data/store --apply",
        "firearrow store repair data/store --from 10.0.0.2:10912 --apply",
    ),
    "firearrow store rebuild": (
        "firearrow store rebuild data/store --dry-run",
        "firearrow store rebuild data/store --only queues --to /tmp/new",
    ),
    "firearrow store salvage": ("firearrow store salvage data/store --to /tmp/saved",),
    "firearrow store diff": ("firearrow store diff data/store /backup/store --logical",),
    "firearrow store why-not-deleted": ("firearrow store why-not-deleted data/store -c broker.conf",),
    "firearrow pipeline": (
        "firearrow pipeline backlog --path data/store",
        "firearrow pipeline archive --path data/store --to /archive",
    ),
    "firearrow pipeline backlog": ("firearrow pipeline backlog --path data/store --report backlog.html",),
    "firearrow pipeline accounting": ("firearrow pipeline accounting --path data/store --top 5",),
    "firearrow pipeline deadletters": (
        "firearrow pipeline deadletters --path data/store --where \"text LIKE '%timeout%'\"",
    ),
    "firearrow pipeline transactions": ("firearrow pipeline transactions --path data/store",),
    "firearrow pipeline duplicates": (
        "firearrow pipeline duplicates --name-server 10.0.0.1:9876 --option subscribe=Orders",
    ),
    "firearrow pipeline latency": ("firearrow pipeline latency --path data/store --option subscribe=Orders",),
    "firearrow pipeline archive": ("firearrow pipeline archive --name-server 10.0.0.1:9876 --to /archive --follow",),
    "firearrow pipeline tables": (
        "firearrow pipeline tables --path data/store --to /lake --topic orders --schema 'order string, cents long'",
    ),
    "firearrow pipeline serve": ("firearrow pipeline serve --name-server 10.0.0.1:9876 --file lake.toml",),
    "firearrow pipeline compact": ("firearrow pipeline compact --archive /archive",),
    "firearrow pipeline expire": ("firearrow pipeline expire --archive /archive --keep 365",),
    "firearrow pipeline restore": (
        ("firearrow pipeline restore --archive /archive --to-name-server 10.0.0.1:9876 --job /jobs/restore"),
    ),
    "firearrow pipeline replay": (
        (
            "firearrow pipeline replay --path data/store --option subscribe=Orders --tag paid "
            "--to-topic Again --to-name-server 10.0.0.1:9876 --job /jobs/replay"
        ),
    ),
    "firearrow pipeline watch": ("firearrow pipeline watch --name-server 10.0.0.1:9876 --alert 'deadLetters > 0'",),
}


def short_help() -> str:
    """Give the help of the name of the program alone."""
    lines = [
        "Apache RocketMQ's message system in Python. For example:",
        "",
        *(f"  {example}" for example in EXAMPLES["firearrow"]),
        "",
        "`firearrow help` lists all commands, `firearrow help COMMAND` the options of one.",
    ]
    return "\n".join(lines) + "\n"
