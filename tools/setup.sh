#!/usr/bin/env bash
# setup.sh run|dev: make .venv with the newest Python from 3.11 to 3.14 that runs here and is not slow
# by its build. Install the servers' dependencies into it (run), or also those of tests, tools and Spark (dev).
# Does nothing if .venv is up to date with pyproject.toml. FIREARROW_PYTHON=/path/to/python chooses the
# interpreter; a change of it makes .venv again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
level=${1:-dev}
source tools/interpreters.sh

say() { echo "firearrow: $*" >&2; }

base_of() { # the interpreter that a Python is, or was made from
  "$1" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))'
}

find_python() { # the newest that is not slow by its build and makes environments, else the newest
  local minor python first=
  for minor in "${minors[@]}" ''; do
    for python in $(interpreters "$minor"); do
      first=${first:-$python}
      "$python" -P src/firearrow/machine.py 2>/dev/null && "$python" -c 'import ensurepip' 2>/dev/null || continue
      echo "$python"
      return
    done
  done
  [ -n "$first" ] && echo "$first"
}

is_usable() { # whether .venv starts, and is what FIREARROW_PYTHON asks for
  runs .venv/bin/python || return 1
  [ -z "${FIREARROW_PYTHON:-}" ] && return
  runs "$FIREARROW_PYTHON" && [ "$(base_of .venv/bin/python)" = "$(base_of "$FIREARROW_PYTHON")" ]
}

sum=$(cat pyproject.toml tools/setup.sh tools/interpreters.sh | cksum | tr ' ' -)
if is_usable; then
  for done in dev "$level"; do # who has all has what running needs
    [ -f ".venv/stamp-$done-$sum" ] && exit 0
  done
else
  python=${FIREARROW_PYTHON:-$(find_python)} || {
    say "Python 3.11, 3.12, 3.13 or 3.14 is missing: install one (Debian: apt-get install python3 python3-venv)."
    exit 1
  }
  runs "$python" || { say "$python is not Python 3.11, 3.12, 3.13 or 3.14."; exit 1; }
  make_venv "$python" .venv || {
    say "$python cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)."
    exit 1
  }
fi

what=('.[server,compress,console,grpc]')
# Of what tests and tools need, a quarter is ever imported: it is compiled then.
if [ "$level" = dev ]; then what+=(--group dev --no-compile); fi
say "setting up .venv with $(.venv/bin/python --version), to $level"
.venv/bin/python -m pip install --quiet --upgrade 'pip>=25.1' # the first that knows --group
.venv/bin/python -m pip install --quiet --editable "${what[@]}"
rm -f ".venv/stamp-$level-"* .venv/stamp-[0-9]*
touch ".venv/stamp-$level-$sum"
