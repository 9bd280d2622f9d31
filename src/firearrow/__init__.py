"""Firearrow: the Apache RocketMQ 5.5.0 message system in pure Python."""

__version__ = "0.1.0"
