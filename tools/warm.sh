#!/usr/bin/env bash
# Make once, beforehand, the files that each worker of a test run would make or wait for: the bytecode of the
# tests, and the programs in Java and Go. A failure here appears again in the test that needs the file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if tools/toolchain.sh 2>/dev/null; then
  .venv/bin/python -m tests.interop.toolchain >/dev/null 2>&1 &
fi
.venv/bin/python -m pytest --collect-only -qq >/dev/null 2>&1 || true
wait
