"""What consumers choose messages by, apart from tags: expressions over properties."""
