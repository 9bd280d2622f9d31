#!/usr/bin/env bash
# Every test, unit and interop, in one run of pytest; mypy checks the types at the same time, because tests leave
# one of two cores idle for a third of their time. A failed test runs once more, alone (tests/retryalone.py).
# Without Java, Maven and Go, the tests that need them are left out with a message; where CI is set, that is an
# error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found=$(mktemp)
trap 'rm -f "$found"' EXIT
make --no-print-directory types >"$found" 2>&1 &
types=$!
tools/warm.sh

# Interop tests spend half of their time waiting: four workers keep two cores busy. With five, a slow machine
# is too late for tests that count seconds.
run=(.venv/bin/python -m pytest -p tests.retryalone -n 4 --dist loadscope)
if ! tools/toolchain.sh; then
  [ -z "${CI:-}" ] || exit 1
  run+=(-m "not interop and not spark")
fi
status=0
"${run[@]}" "$@" || status=$?
if ! wait "$types"; then
  cat "$found"
  exit 1
fi
exit "$status"
