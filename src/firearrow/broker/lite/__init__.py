"""Lite topics: any number of queues below one topic, which come to be by the first message."""
