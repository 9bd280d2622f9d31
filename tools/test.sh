#!/usr/bin/env bash
# Every test, unit and interop, in one run of pytest. Without Java, Maven and Go the tests that
# need them are left out and that is said, except where CI is set: there it is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Interop tests wait for times to come half of theirs: four workers keep two cores busy. With five,
# a slow machine is too late for tests that count seconds.
run=(.venv/bin/python -m pytest -n 4 --dist loadscope)
if tools/toolchain.sh; then
  exec "${run[@]}" "$@"
elif [ -n "${CI:-}" ]; then
  exit 1
fi
exec "${run[@]}" -m "not interop and not spark" "$@"
