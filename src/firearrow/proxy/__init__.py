"""RocketMQ 5's gRPC protocol: the messages, and the services that Firearrow serves to clients of RocketMQ 5."""
