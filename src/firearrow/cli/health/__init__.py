"""Commands that diagnose a cluster: `check`, `doctor`, `lag`, `top`, and the meaning of response codes."""
