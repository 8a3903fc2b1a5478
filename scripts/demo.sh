#!/usr/bin/env bash
# Show the whole way in a throwaway directory: speculate, look, approve, apply, refuse a stale one, revert.
# Nothing outside that directory is touched, and nothing is left behind.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export FLUX_STATE_DIR="$place/state"
project="$place/project"
mkdir -p "$project/notes"
printf 'name = "demo"\nport = 80\n' >"$project/app.toml"
printf 'keep me\n' >"$project/notes/a.txt"
printf 'drop me\n' >"$project/notes/b.txt"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }
field() { .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
must_fail() { # EXIT COMMAND…
    local wanted=$1 code=0
    shift
    run "$@" || code=$?
    [ "$code" = "$wanted" ] || { echo "demo: expected exit code $wanted, got $code" >&2; exit 1; }
}

say "1. A sandbox over a project directory"
printf '$ fluxctl sandbox create --workspace project --name demo\n'
fluxctl --json sandbox create --workspace "$project" --name demo >"$place/sandbox.json"
echo "sandbox $(field id <"$place/sandbox.json")"

say "2. An agent's command runs in a throwaway copy"
command='sed -i s/80/8080/ app.toml; rm notes/b.txt; echo hello > notes/c.txt; wget -q -T 1 -t 1 http://192.0.2.1/ || true'
printf '$ fluxctl sandbox speculate demo -- sh -c "%s"\n' "$command"
changeset=$(fluxctl --json sandbox speculate demo -- sh -c "$command" | field id)
echo "changeset $changeset"

say "3. The project is untouched; the changeset says what would change, and what was refused"
run cat "$project/app.toml"
run fluxctl sandbox changeset demo "$changeset" --diff

say "4. Approve and apply"
fluxctl --json sandbox approve demo "$changeset" --comment "looks right" >/dev/null
fluxctl --json sandbox apply demo "$changeset" >/dev/null
run cat "$project/app.toml"
run ls "$project/notes"
grep -q 8080 "$project/app.toml"
[ ! -e "$project/notes/b.txt" ]

say "5. A second changeset is refused when somebody edits the project meanwhile"
stale=$(fluxctl --json sandbox speculate demo -- sed -i s/8080/9090/ app.toml | field id)
fluxctl --json sandbox approve demo "$stale" >/dev/null
echo 'debug = true' >>"$project/app.toml"
must_fail 75 fluxctl sandbox apply demo "$stale"
run tail -n 1 "$project/app.toml"
grep -q 'debug = true' "$project/app.toml"
sed -i '$d' "$project/app.toml"

say "6. Undo the first one: its inverse is a changeset too"
inverse=$(fluxctl --json sandbox revert demo "$changeset" | field id)
fluxctl --json sandbox approve demo "$inverse" >/dev/null
fluxctl --json sandbox apply demo "$inverse" >/dev/null
run cat "$project/app.toml"
run ls "$project/notes"
grep -q 'port = 80$' "$project/app.toml"
[ -e "$project/notes/b.txt" ] && [ ! -e "$project/notes/c.txt" ]

say "7. Everything is in the audit log"
run fluxctl audit
fluxctl --json sandbox rm demo >/dev/null
say "Done."
