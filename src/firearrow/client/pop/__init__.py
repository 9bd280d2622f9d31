"""Pop: simple consumers, the pops of push consumers, and the renewal of invisible times."""
