#!/usr/bin/env bash
# Make beforehand, and once, what each worker of a test run would make or wait for: the bytecode of
# the tests, and the programs in Java and Go. What fails here fails there again, and is shown there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if tools/toolchain.sh 2>/dev/null; then
  .venv/bin/python -m tests.interop.toolchain >/dev/null 2>&1 &
fi
.venv/bin/python -m pytest --collect-only -qq >/dev/null 2>&1 || true
wait
