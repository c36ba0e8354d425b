#!/usr/bin/env bash
# Plants bugs and shows that the tests find each of them.
#
# usage: tests/planted/run.sh [BUG ..]     all bugs when none is given
#        tests/planted/run.sh --list
#
# A bug is a file of this folder: what is wrong (`bug:`), what to build (`target:`), the test that must fail (`test:`), and a patch that
# does nothing unless PLANTED in the environment names it. All are applied to a copy of the tree in target/planted, which is built
# once; the tree itself is not touched. Each test has to pass there without a bug, and to fail with it. It is an error if a patch does
# not apply, if the copy does not build, or if a test is not there.
#
# The first build takes as long as one from nothing, unless target/debug is there to begin with; all else is minutes. CARGO is the
# command that builds.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/planted
work=$root/target/planted
tree=$work/tree
read -r -a cargo <<< "${CARGO:-cargo}"
# A test that hangs has found something too, but it has to end.
limit=${PLANTED_SECONDS:-300}

fail() { echo "planted: $*" >&2; exit 2; }
field() { sed -n "s/^$2: //p" "$here/$1.patch" | head -n 1; }

if [ "${1:-}" = --list ]; then
  for file in "$here"/*.patch; do
    bug=$(basename "$file" .patch)
    printf '%-24s %s\n' "$bug" "$(field "$bug" bug)"
  done
  exit 0
fi
bugs=("$@")
if [ ${#bugs[@]} -eq 0 ]; then
  for file in "$here"/*.patch; do bugs+=("$(basename "$file" .patch)"); done
fi

# Makes the copy what the tree is. A file gets a new time whenever its content changes, back to what it was too: cargo goes by times.
restore() {
  (cd "$root" && git ls-files -z --cached --others --exclude-standard) > "$work/files"
  while IFS= read -r -d '' file; do
    [ -f "$root/$file" ] || { rm -f "$tree/$file"; continue; }
    cmp -s "$root/$file" "$tree/$file" && continue
    mkdir -p "$tree/$(dirname "$file")"
    cp "$root/$file" "$tree/$file"
    touch "$tree/$file"
  done < "$work/files"
}

# Runs one test of those programs that were built; what came of it in `outcome`.
run_test() {
  local log=$work/test.log status=0 program
  : > "$log"
  while read -r program; do
    case $program in /*) ;; *) program=$tree/$program ;; esac
    (cd "$tree/tests" && PLANTED=$1 timeout "$limit" "$program" --exact "$2") >> "$log" 2>&1 < /dev/null || status=$?
  done < "$work/programs"
  if [ $status -eq 124 ]; then outcome=hangs
  elif grep -q "^test $2 \.\.\. ok" "$log"; then outcome=passes
  elif grep -q "^test $2 \.\.\. FAILED" "$log"; then outcome=fails
  else outcome=missing; fi
}

mkdir -p "$tree"
if [ ! -d "$work/target/debug" ] && [ -d "$root/target/debug" ]; then
  mkdir -p "$work/target"
  cp -a --reflink=auto "$root/target/debug" "$work/target/debug"
fi
restore
trap restore EXIT
for bug in "${bugs[@]}"; do
  [ -f "$here/$bug.patch" ] || fail "there is no bug $bug; --list tells those that there are"
  # The copy lies in the tree, and is none of its repository.
  (cd "$tree" && GIT_CEILING_DIRECTORIES=$work git apply "$here/$bug.patch") \
    || fail "$bug does not apply: bring tests/planted/$bug.patch up to date"
done
: > "$work/programs"
for target in $(for bug in "${bugs[@]}"; do field "$bug" target | tr ' ' '+'; done | sort -u); do
  read -r -a flags <<< "${target//+/ }"
  (cd "$tree" && CARGO_TARGET_DIR=$work/target "${cargo[@]}" test "${flags[@]}" --no-run) > "$work/build.log" 2>&1 \
    || { tail -n 60 "$work/build.log" >&2; fail "the copy does not build"; }
  sed -n 's/^ *Executable .* (\(.*\))$/\1/p' "$work/build.log" >> "$work/programs"
done

missed=0
printf '| bug | test | outcome |\n|---|---|---|\n'
for bug in "${bugs[@]}"; do
  test=$(field "$bug" test)
  run_test '' "$test"
  [ $outcome = passes ] || { tail -n 60 "$work/test.log" >&2; fail "without any bug, $test $outcome"; }
  run_test "$bug" "$test"
  case $outcome in
    fails) told=found ;;
    hangs) told="found: the test does not end within $limit s" ;;
    passes) told='**not found**' missed=$((missed + 1)) ;;
    *) tail -n 60 "$work/test.log" >&2; fail "with $bug, $test $outcome" ;;
  esac
  printf '| %s | `%s` | %s |\n' "$(field "$bug" bug)" "$test" "$told"
done
[ $missed -eq 0 ] || { echo "planted: $missed bugs were not found" >&2; exit 1; }
