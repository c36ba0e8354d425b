#!/usr/bin/env bash
# Looks for inputs on which a target fails, led by coverage, with libFuzzer.
#
# usage: fuzz/run.sh [SECONDS [TARGET ..]]     10 seconds for each of all targets when not given
#
# Needs a C++ compiler; where there is none, nothing is fuzzed, which is said loudly, and is a failure with ALLUVIUM_FUZZ=required. The
# crates of this workspace are built anew, dependencies are those of the tests. Two targets run at a time. What is found lies in
# target/fuzz/finds, with the command that replays it; as a file in fuzz/seeds/TARGET it is a test from then on.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-10}
[ $# -eq 0 ] || shift
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
if ! command -v c++ > /dev/null; then
  printf '\n!!! SKIPPED: nothing was fuzzed: there is no C++ compiler\n!!! Set ALLUVIUM_FUZZ=required to make this a failure.\n\n' >&2
  if [ "${ALLUVIUM_FUZZ:-}" = required ]; then exit 1; else exit 0; fi
fi
built=${CARGO_TARGET_DIR:-$PWD/../target}
out=$built/fuzz
mkdir -p "$out/finds"
bins=()
for target in "${targets[@]}"; do bins+=(--bin "$target"); done
RUSTC_WORKSPACE_WRAPPER=$PWD/rustc.sh cargo build --quiet -p alluvium-fuzz "${bins[@]}"

fuzz() { # TARGET
  local corpus=$out/corpus/$1 log=$out/$1.log
  mkdir -p "$corpus"
  if "$built/debug/$1" "$corpus" "seeds/$1" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 \
    -artifact_prefix="$out/finds/$1-" -print_final_stats=1 -verbosity=0 > "$log" 2>&1; then
    echo "fuzz: $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, nothing found"
  else
    tail -n 60 "$log" >&2
    echo "fuzz: $1 failed; the input lies in $out/finds" >&2
    return 1
  fi
}
export -f fuzz
export built out seconds
printf '%s\n' "${targets[@]}" | xargs -P 2 -I {} bash -euo pipefail -c 'fuzz "$1"' _ {}
