#!/bin/sh
# The history of any git repository as a state: a path is a key, its mode and blob are the value, the number of the commit
# is the version, and the committer's time is the event time. Then git is asked what it lists at some commits, and
# the state as of the same commits must be the same.
#
#   examples/git-history.sh [REPOSITORY [STORE]]
#
# REPOSITORY is the current folder when it is not given, STORE a temporary one that is removed at the end. The program is
# `alluvium`, or what ALLUVIUM names. Merges count as what they change against their first parent.
set -eu
LC_ALL=C
TZ=UTC
export LC_ALL TZ

repository=${1:-.}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ALLUVIUM_STORE=${2:-$work/store}
export ALLUVIUM_STORE
alluvium=${ALLUVIUM:-alluvium}
# Commits that are compared at most.
samples=${SAMPLES:-20}

# A path as git prints it: as it is, or in quotes with the escapes of C, which are nearly those of JSON.
# shellcheck disable=SC2016
json_path='
function json(path,    out, octal) {
    if (path !~ /^"/) return "\"" path "\""
    out = ""
    while (match(path, /\\([0-3][0-7][0-7]|.)/)) {
        octal = substr(path, RSTART + 1, RLENGTH - 1)
        out = out substr(path, 1, RSTART - 1)
        if (octal == "a") out = out "\\u0007"
        else if (octal == "v") out = out "\\u000b"
        else if (length(octal) == 1) out = out "\\" octal
        else out = out sprintf("\\u%04x", substr(octal, 1, 1) * 64 + substr(octal, 2, 1) * 8 + substr(octal, 3, 1))
        path = substr(path, RSTART + RLENGTH)
    }
    return out path
}
function path_of(line) { return json(substr(line, index(line, "\t") + 1)) }
'

in_git() { git -C "$repository" -c core.quotePath=false "$@"; }

# The changes of all commits, the first one first, as the lines that append takes.
changes() {
    in_git log --first-parent -m --root --reverse --no-renames --no-abbrev --raw \
        --date=format-local:%Y-%m-%dT%H:%M:%SZ --format='commit %H %cd' |
        awk "$json_path"'
            /^commit / { version++; id = $2; time = $3 }
            /^:/ {
                printf "{\"key\":%s,\"version\":%d,\"event_time\":\"%s\",", path_of($0), version, time
                if ($5 ~ /^D/) print "\"op\":\"DELETE\"}"
                else printf "\"value\":{\"mode\":\"%s\",\"blob\":\"%s\",\"commit_id\":\"%s\"}}\n", $2, $4, id
            }'
}

# What git lists at a commit, and the state as of a version: a path, its mode and its blob on each line.
listed() {
    in_git ls-tree -r --full-tree "$1" |
        awk "$json_path"'{ printf "{\"path\":%s,\"mode\":\"%s\",\"blob\":\"%s\"}\n", path_of($0), $1, $3 }' | sort
}
known() {
    "$alluvium" --quiet --output jsonl sql \
        "SELECT state_key AS path, mode, blob FROM as_of('files', version => $1)" | sort
}

echo "loading the history of $repository"
"$alluvium" --quiet create files --order-by version --max-future-ms 3153600000000 \
    --schema 'mode STRING NOT NULL, blob STRING NOT NULL, commit_id STRING NOT NULL' >"$work/created"
changes | "$alluvium" append files
"$alluvium" --output table materialize files
"$alluvium" --output table verify files

in_git rev-list --first-parent --reverse HEAD >"$work/commits"
commits=$(wc -l <"$work/commits")
step=$(((commits + samples - 1) / samples))
compared=0
version=$commits
while [ "$version" -ge 1 ]; do
    id=$(sed -n "${version}p" "$work/commits")
    listed "$id" >"$work/listed"
    known "$version" >"$work/known"
    if ! diff "$work/listed" "$work/known" >"$work/difference"; then
        echo "as of commit $version ($id) the state is not what git lists:" >&2
        head -n 10 "$work/difference" >&2
        exit 1
    fi
    compared=$((compared + 1))
    version=$((version - step))
done
echo "as of $compared of $commits commits the state is exactly what git lists"

if [ "$commits" -gt 1 ]; then
    echo
    echo "changed most often:"
    "$alluvium" --output table sql "SELECT state_key AS path, count(*) AS changes FROM log.files GROUP BY state_key ORDER BY changes DESC, path LIMIT 5"
    echo
    echo "what the last commit changed:"
    "$alluvium" --output table diff files "version:$((commits - 1))" latest --limit 5
fi
