#!/usr/bin/env bash
# Opens the demo's store with other engines: what our program says of it is what they must say.
#
# usage: tests/interop/ci.sh STORE     (DIR/store after `alluvium demo --dir DIR`)
#
# A change from another engine is read back too: they append to a copy, and our program must see it.
set -euo pipefail
cd "$(dirname "$0")/../.."

store=${1:?usage: tests/interop/ci.sh STORE}
state=aircraft
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
alluvium() { cargo run --quiet --bin alluvium -- --store "$1" "${@:2}" --output jsonl; }

time=2013-01-20T12:00:00Z
version=$(alluvium "$store" sql "SELECT max(version) AS v FROM log.$state WHERE event_time <= '$time'" | tr -dc 0-9)
mkdir "$work/expected"
alluvium "$store" scan $state > "$work/expected/latest.jsonl"
alluvium "$store" scan $state --time $time > "$work/expected/as_of_time.jsonl"
alluvium "$store" scan $state --version "$version" > "$work/expected/as_of_version.jsonl"
printf '{"time": "%s", "version": %s}\n' $time "$version" > "$work/expected/points.json"

tests/interop/run.sh --sail
tests/interop/run.sh --sail --store "$store" --state $state --expected "$work/expected" --foreign-copy "$work/foreign"

# What the engines appended to the copy is part of the state for our program.
mkdir "$work/again"
cp "$work/expected/points.json" "$work/again/"
copy=$work/foreign/store
alluvium "$copy" scan $state > "$work/again/latest.jsonl"
alluvium "$copy" scan $state --time $time > "$work/again/as_of_time.jsonl"
alluvium "$copy" scan $state --version "$version" > "$work/again/as_of_version.jsonl"
if cmp -s "$work/expected/latest.jsonl" "$work/again/latest.jsonl"; then
  echo "interop: the rows that other engines appended are not seen" >&2
  exit 1
fi
# Sail stays out of this one: it can't read the string columns of files that Polars wrote.
tests/interop/run.sh --store "$copy" --state $state --expected "$work/again"
