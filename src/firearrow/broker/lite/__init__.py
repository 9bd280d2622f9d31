"""Lite topics: any number of queues below one topic, which the first message creates."""
