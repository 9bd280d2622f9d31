"""The broker's part in replication: roles, the state beside the log, refusals by role."""
