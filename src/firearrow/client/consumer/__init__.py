"""Parts of every consumer: its membership, subscriptions, offsets, cached messages and handlers."""
