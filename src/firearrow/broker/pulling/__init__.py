"""Pulls: reads of queues, long polling, cold reads, queries of messages."""
