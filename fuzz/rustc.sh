#!/bin/sh
# The compiler as cargo calls it for the crates of this workspace, and no others: what they do is counted, for libFuzzer.
exec "$@" --cfg fuzzing -Copt-level=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
