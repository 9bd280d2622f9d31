"""What can go wrong with a benchmark, each with a sentence for the person who ran it."""


class BenchmarkError(Exception):
    """Say why there is no number: a server that did not start, a load that failed."""


class MissingTool(BenchmarkError):
    """Say which program this machine lacks and what needs it."""
