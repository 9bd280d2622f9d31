"""Push consumers: the queues of one member, consumed in any order or in order."""
