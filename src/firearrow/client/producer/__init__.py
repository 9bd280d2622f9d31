"""Producers: sends, batches, transactions, requests with a reply, and the choice of a queue."""
