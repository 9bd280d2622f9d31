#!/usr/bin/env bash
# Say in one sentence which of the programs that interop and Spark tests need is missing, and fail; say
# nothing and succeed if all are there. (The benchmark checks its own needs.)
set -euo pipefail

jdk_version() { javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p'; }

missing=()
version=$(command -v java >/dev/null && command -v javac >/dev/null && jdk_version || true)
[ "${version:-0}" -ge 17 ] || missing+=("a JDK from 17 on (Debian: openjdk-17-jdk-headless)")
command -v mvn >/dev/null || missing+=("Maven (Debian: maven)")
go version >/dev/null 2>&1 || missing+=("Go (Debian: golang-go)")
[ ${#missing[@]} -eq 0 ] && exit 0

list=$(printf ', %s' "${missing[@]}")
echo "firearrow: missing here, and needed by the interop and Spark tests only: ${list:2}." >&2
exit 1
