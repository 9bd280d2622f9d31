"""POP: consumers take messages from the broker, for a time, and acknowledge each one."""
