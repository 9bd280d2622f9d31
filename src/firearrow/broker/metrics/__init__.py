"""Monitoring of a broker: metrics by RocketMQ's names, and health."""
