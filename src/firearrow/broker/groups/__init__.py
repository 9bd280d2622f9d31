"""Consumer groups and their members: subscriptions, heartbeats, locks, assignment of queues."""
