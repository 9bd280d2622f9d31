"""Loads on any cluster: a number of operations in flight or per second, and the latency of each."""
