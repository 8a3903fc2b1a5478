#!/usr/bin/env bash
# Make this checkout ready: system packages, .venv with pinned requirements, native parts, editable install.
#
# usage: scripts/setup.sh [run|dev]     run: what Flux itself needs; dev (default): what tests and checks need too.
#
# Does only what has not been done yet, asks nothing, and says plainly what it could not install and how to.
set -euo pipefail
cd "$(dirname "$0")/.."
goal=${1:-dev}
stamps=.venv/stamps

# An empty or read-only home is no reason to fail: pip and apt only want a place for caches.
if [ -z "${HOME:-}" ] || [ ! -w "$HOME" ]; then
    export HOME="$PWD/.cache/home"
fi
mkdir -p "$HOME" .cache
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore DEBIAN_FRONTEND=noninteractive
export PATH="$PATH:/usr/sbin:/sbin"
# Debian keeps a database server's own programs beside its version.
for place in /usr/lib/postgresql/*/bin; do PATH="$PATH:$place"; done

# Two runs at once would tread on each other's .venv.
if command -v flock >/dev/null; then
    exec 9>.cache/setup.lock
    flock 9
fi

say() { printf 'setup: %s\n' "$*" >&2; }

# ---- system packages: command, Debian packages, what is lost without it
run_tools() {
    cat <<'LIST'
cc gcc,libc6-dev the native parts cannot be built
nft nftables sandboxes with --net-port or --internet are refused
git git there is none in sandboxes of the template base, and tests with repositories and the style tests are skipped
python3 python3 there is none in sandboxes of the template base
LIST
}
dev_tools() {
    cat <<'LIST'
ip iproute2 tests with networks are skipped
sqlite3 sqlite3 tests with databases are skipped
mkfs.btrfs btrfs-progs tests of the snapshot engine are skipped
mkfs.xfs xfsprogs tests of the reflink engine are skipped
setfacl acl tests with access control lists are skipped
setfattr attr tests with extended attributes are skipped
setcap libcap2-bin tests with file capabilities are skipped
chromium chromium tests of the review page are skipped
initdb postgresql tests of the registry in PostgreSQL are skipped
node nodejs tests with the public JavaScript SDK are skipped
npm npm tests with the public JavaScript SDK are skipped
LIST
}
tools() { run_tools; if [ "$goal" = dev ]; then dev_tools; fi; }
missing_tools() {
    tools | while read -r tool packages loss; do
        command -v "$tool" >/dev/null || printf '%s %s %s\n' "$tool" "$packages" "$loss"
    done
}
packages_of() { awk '{ print $2 }' | tr ',' '\n' | sort -u | tr '\n' ' '; }

install_packages() { # packages…
    apt-get install -y -qq --no-install-recommends "$@" </dev/null >.cache/apt.log 2>&1 && return
    apt-get update -qq </dev/null >>.cache/apt.log 2>&1 || true
    apt-get install -y -qq --no-install-recommends "$@" </dev/null >>.cache/apt.log 2>&1
}

system_packages() {
    local missing list
    missing=$(missing_tools)
    [ -n "$missing" ] || return 0
    list=$(packages_of <<<"$missing")
    # What could not be installed the last time is only named again, not tried again.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ "$(cat .cache/not-installed 2>/dev/null)" != "$list" ]; then
        say "installing $list"
        # One by one if the whole list fails, so that one unknown package does not keep the others out.
        # shellcheck disable=SC2086
        install_packages $list || for package in $list; do install_packages "$package" || true; done
        missing=$(missing_tools)
    fi
    [ -n "$missing" ] || return 0
    list=$(packages_of <<<"$missing")
    printf '%s\n' "$list" >.cache/not-installed
    while read -r tool _ loss; do say "missing: $tool, so $loss"; done <<<"$missing"
    say "to install: $([ "$(id -u)" = 0 ] || printf 'sudo ')apt-get install $list"
}

# ---- Python
usable() { # PYTHON [with headers and venv]
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || return 1
    [ $# = 1 ] || "$1" - <<'PY' 2>/dev/null
import ensurepip, os, sys, sysconfig, venv
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
PY
}
find_python() {
    local candidate
    for candidate in python3.13 python3.12 python3.11 python3 /usr/bin/python3; do
        if command -v "$candidate" >/dev/null && usable "$candidate" complete; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}
virtual_environment() {
    if [ -x .venv/bin/python ] && usable .venv/bin/python; then return 0; fi
    local python
    if ! python=$(find_python); then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            say "installing python3-dev python3-venv"
            install_packages python3 python3-dev python3-venv || true
        fi
        if ! python=$(find_python); then
            say "no Python 3.11 or newer with headers and venv was found."
            say "to install: apt-get install python3 python3-dev python3-venv"
            exit 1
        fi
    fi
    rm -rf .venv
    "$python" -m venv .venv
}

# ---- what is up to date is left alone
digest() { # FILE… → one word for their contents and the interpreter
    { .venv/bin/python -VV; cat "$@"; } | sha256sum | cut -d' ' -f1
}
fresh() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]; }
mark() { mkdir -p "$stamps"; printf '%s\n' "$2" >"$stamps/$1"; }

install() { # what pip says matters only when it fails
    .venv/bin/python -m pip install -q "$@" </dev/null >.cache/pip.log 2>&1 || { cat .cache/pip.log >&2; exit 1; }
}

requirements() {
    local base=(requirements/build.txt requirements/run.txt) more=() options=() file
    if [ "$goal" = dev ]; then more=(requirements/dev.txt); fi
    local now
    now=$(digest "${base[@]}" "${more[@]}")
    if fresh "requirements-$goal" "$now"; then return 0; fi
    say "installing the pinned requirements into .venv, about a minute"
    for file in "${base[@]}" "${more[@]}"; do options+=(-r "$file"); done
    install --require-hashes "${options[@]}"
    mark "requirements-run" "$(digest "${base[@]}")"
    mark "requirements-$goal" "$now"
}

native_parts() {
    local now
    now=$(digest pyproject.toml setup.py src/flux/trees/native/*.[ch] src/flux/substrates/procbox/launcher/*.[ch])
    if fresh native "$now" && compgen -G 'src/flux/trees/_native*.so' >/dev/null &&
        [ -x src/flux/substrates/procbox/_launcher ] && [ -x .venv/bin/fluxctl ]; then return 0; fi
    say "building the native parts"
    install --no-build-isolation --no-deps -e .
    mark native "$now"
}

byte_code() { # without it every command would compile what it loads, where the environment keeps Python from writing
    .venv/bin/python -m compileall -q src/flux >.cache/compile.log 2>&1 || { cat .cache/compile.log >&2; exit 1; }
}

system_packages
virtual_environment
requirements
native_parts
byte_code
