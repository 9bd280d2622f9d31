"""Output of commands: tables and reports on a terminal, as JSON, as CSV and as a page."""
