#!/usr/bin/env bash
# Looks for inputs on which a target fails, led by coverage, with libFuzzer.
#
# usage: fuzz/run.sh [SECONDS [TARGET ..]]     10 seconds for each of all targets when not given
#
# Needs a nightly toolchain (`rustup toolchain install nightly`) and a C++ compiler. The first build takes as long as one of the
# program from nothing; nothing of it is part of the normal build. What is found lies in target/fuzz/finds, with the command that
# replays it; as a file in fuzz/seeds/TARGET it is a test from then on.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-10}
[ $# -eq 0 ] || shift
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
out=$PWD/../target/fuzz
mkdir -p "$out/finds"
bins=()
for target in "${targets[@]}"; do bins+=(--bin "$target"); done
# What is ours is what is looked at, but libFuzzer's flags can't be given for some crates only.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table" \
  cargo +nightly build --release --target "$(rustc -vV | sed -n 's/^host: //p')" --target-dir "$out" "${bins[@]}"

status=0
for target in "${targets[@]}"; do
  corpus=$out/corpus/$target
  mkdir -p "$corpus"
  echo "fuzz: $target for $seconds s"
  "$out"/*/release/"$target" "$corpus" "seeds/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 \
    -artifact_prefix="$out/finds/$target-" -print_final_stats=1 -verbosity=0 || status=1
done
[ $status -eq 0 ] || echo "fuzz: failed; the inputs lie in $out/finds" >&2
exit $status
