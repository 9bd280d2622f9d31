#!/usr/bin/env bash
# Every test, unit and interop, in one run of pytest, and beside it the types: mypy takes a core for
# a minute and a half, and tests leave one idle for a third of their time. Without Java, Maven and Go
# the tests that need them are left out and that is said, except where CI is set: there it is an
# error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found=$(mktemp)
trap 'rm -f "$found"' EXIT
make --no-print-directory types >"$found" 2>&1 &
types=$!
tools/warm.sh

# Interop tests wait for times to come half of theirs: four workers keep two cores busy. With five,
# a slow machine is too late for tests that count seconds.
run=(.venv/bin/python -m pytest -n 4 --dist loadscope)
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
