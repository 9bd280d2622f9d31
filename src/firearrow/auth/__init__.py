"""Identity and rights of clients: RocketMQ's ACL 2.0, without a socket or an event loop."""
