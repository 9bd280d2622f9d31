"""Who clients are and what they may do: RocketMQ's ACL 2.0, without a socket or an event loop."""
