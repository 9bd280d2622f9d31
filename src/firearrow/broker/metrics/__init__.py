"""What monitoring is told of a broker: metrics as RocketMQ names them, and its health."""
