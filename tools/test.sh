#!/usr/bin/env bash
# Every test, unit and interop, in one run of pytest. Beside it, in what the tests leave idle of two cores, mypy checks
# the types, and the programs in Java, Go and Rust are built that later tests need. A failed test runs once more, alone
# (tests/retryalone.py). Without Java, Maven and Go, the tests that need them are left out with a message; where CI is
# set, that is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found=$(mktemp)
trap 'rm -f "$found"' EXIT
make --no-print-directory types >"$found" 2>&1 &
types=$!

# Interop tests spend half of their time waiting: four workers keep two cores busy. With five, a slow machine
# is too late for tests that count seconds.
run=(.venv/bin/python -m pytest -p tests.retryalone -n 4 --dist loadscope)
builds=
if ! tools/toolchain.sh; then
  [ -z "${CI:-}" ] || exit 1
  run+=(-m "not interop and not spark")
elif [ $# -eq 0 ]; then
  .venv/bin/python -m tests.interop.toolchain >/dev/null 2>&1 &
  builds=$!
fi
# The bytecode of the tests, which each worker would make.
.venv/bin/python -m pytest --collect-only -qq >/dev/null 2>&1 || true
status=0
"${run[@]}" "$@" || status=$?
[ -z "$builds" ] || wait "$builds" || true # a failure appears in the test that needs the program
if ! wait "$types"; then
  cat "$found"
  exit 1
fi
exit "$status"
