#!/usr/bin/env bash
# Make .venv with the newest Python from 3.11 to 3.13 that runs here, and install the project and
# its development tools into it. Does nothing when that has been done for this pyproject.toml.
# FIREARROW_PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "firearrow: $*" >&2; }

# An interpreter counts only if it starts and is what it claims to be: pyenv's shims, for one,
# exist for versions that are not active and fail.
runs() { # runs PYTHON MINOR...
  local python=$1 minors=" ${*:2} "
  local found
  found=$("$python" -c 'import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)' \
    2>/dev/null) && [[ $minors == *" $found "* ]]
}

find_python() {
  local minor python
  for minor in 13 12 11; do
    for python in "python3.$minor" $(pyenv_versions "$minor"); do
      if runs "$python" "$minor"; then echo "$python"; return; fi
    done
  done
  if runs python3 13 12 11; then echo python3; return; fi
  return 1
}

pyenv_versions() { # every pyenv interpreter of this minor version, newest first
  local root
  for root in "${PYENV_ROOT:-}" "$HOME/.pyenv"; do
    [ -d "$root/versions" ] || continue
    ls -d "$root/versions/3.$1."*/bin/"python3.$1" 2>/dev/null | sort -rV || true
  done
}

make_venv() { # make_venv PYTHON
  rm -rf .venv
  "$1" -m venv .venv >/dev/null 2>&1 && return
  rm -rf .venv
  "$1" -m virtualenv -q .venv 2>/dev/null && return
  virtualenv -q -p "$1" .venv 2>/dev/null && return
  rm -rf .venv
  return 1
}

stamp=.venv/stamp-$(cat pyproject.toml tools/setup.sh | cksum | tr ' ' -)
[ -f "$stamp" ] && .venv/bin/python -c '' 2>/dev/null && exit 0

if ! runs .venv/bin/python 13 12 11; then
  python=${FIREARROW_PYTHON:-$(find_python)} || {
    say "Python 3.11, 3.12 or 3.13 is missing: install one (Debian: apt-get install python3 python3-venv)."
    exit 1
  }
  runs "$python" 13 12 11 || { say "$python is not Python 3.11, 3.12 or 3.13."; exit 1; }
  make_venv "$python" || {
    say "$python cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)."
    exit 1
  }
fi
say "setting up .venv with $(.venv/bin/python --version)"
.venv/bin/python -m pip install --quiet --upgrade 'pip>=25.1' # the first that knows --group
.venv/bin/python -m pip install --quiet --editable '.[compress]' --group dev
rm -f .venv/stamp-*
touch "$stamp"
