#!/usr/bin/env bash
# Opens the tables of a state with engines that we did not write, and compares what they say with what we say.
#
# usage: tests/interop/run.sh [--sail] [--store PATH --state NAME --expected DIR [--foreign-copy DIR]]
#
#   --sail             check Sail (Spark SQL) too; installs its packages in a second step
#   --store ..         the state to check, and the folder of expected rows (check.py says what is in it);
#                      without these, the states of fixture.py, a second implementation of docs/formats.md
#   --foreign-copy DIR let the engines append to a copy of the state, left in DIR/store
#
# The Python packages go to target/interop-venv and are kept while the requirements stay the same.
# Exit code: 0 all passed, 1 a check failed or the packages could not be installed, 2 wrong usage.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
venv=$target/interop-venv
fixture=$target/interop
export PYTHONDONTWRITEBYTECODE=1 # nothing but target/ is written to

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
fail() { echo "interop: $*" >&2; exit 1; }

sail='' store='' state='' expected='' foreign=''
while [ $# -gt 0 ]; do
  case $1 in
    --sail) sail=--sail; shift; continue ;;
    --store | --state | --expected | --foreign-copy) [ $# -ge 2 ] || usage ;;
    *) usage ;;
  esac
  case $1 in
    --store) store=$2 ;;
    --state) state=$2 ;;
    --expected) expected=$2 ;;
    --foreign-copy) foreign=$2 ;;
  esac
  shift 2
done
given=0
for option in "$store" "$state" "$expected"; do [ -z "$option" ] || given=$((given + 1)); done
[ $given -eq 0 ] || [ $given -eq 3 ] || usage
[ $given -eq 3 ] || [ -z "$foreign" ] || usage

# Installs a file of requirements, unless this very file is installed already.
install() {
  local requirements=$here/$1 stamp=$venv/$1
  cmp -s "$requirements" "$stamp" && return
  echo "interop: installing the packages of $1"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
    --retries 1 --timeout 30 --requirement "$requirements" \
    || fail "pip could not install the packages of $1 (its words are above). Is there a network, or a package index that pip knows?"
  cp "$requirements" "$stamp"
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 must be 3.11 or later"
mkdir -p "$target"
exec 9>"$venv.lock"
if command -v flock >/dev/null; then flock 9; fi
started=$SECONDS
"$venv/bin/python" -c '' 2>/dev/null || python3 -m venv --clear "$venv" || fail "python3 -m venv failed"
install requirements.txt
[ -z "$sail" ] || install requirements-sail.txt
echo "interop: packages ready after $((SECONDS - started)) s"
exec 9>&-

check() { "$venv/bin/python" "$here/check.py" "$@" $sail; }

status=0
if [ $given -eq 3 ]; then
  check "$store" "$state" "$expected" ${foreign:+--foreign-copy "$foreign"} || status=1
else
  "$venv/bin/python" "$here/fixture.py" "$fixture/store" "$fixture/expected"
  for state in by_time by_version; do
    check "$fixture/store" "$state" "$fixture/expected/$state" --foreign-copy "$fixture/foreign/$state" || status=1
  done
fi
echo "interop: done after $((SECONDS - started)) s"
exit $status
