#!/usr/bin/env bash
# Make the environments of the public SDKs that tests/sdk tries Flux with: .cache/sdk/python and .cache/sdk/js.
#
# Each is apart from .venv, as an SDK pins other versions than Flux. Does only what has not been done yet, asks nothing,
# and says plainly what it could not do: the Python SDK is needed, the JavaScript SDK only where there is a Node for it.
set -euo pipefail
cd "$(dirname "$0")/.."
made=.cache/sdk
if [ -z "${HOME:-}" ] || [ ! -w "$HOME" ]; then
    export HOME="$PWD/.cache/home"
fi
mkdir -p "$HOME" "$made"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore

if command -v flock >/dev/null; then
    exec 9>"$made/lock"
    flock 9
fi

say() { printf 'sdk: %s\n' "$*" >&2; }

# What is up to date is left alone: a stamp names what an environment was made from.
fresh() { [ "$(cat "$made/$1.made" 2>/dev/null)" = "$2" ]; }
mark() { printf '%s\n' "$2" >"$made/$1.made"; }

quietly() { # LOG COMMAND…: what it says matters only when it fails
    local log="$made/$1.log"
    shift
    "$@" </dev/null >"$log" 2>&1 || { cat "$log" >&2; return 1; }
}

python_sdk() {
    local requirements=tests/sdk/python/requirements.txt now
    now=$({ .venv/bin/python -VV; cat "$requirements"; } | sha256sum)
    if fresh python "$now" && [ -x "$made/python/bin/python" ]; then return 0; fi
    say "installing the public Python SDK into $made/python"
    rm -rf "$made/python" "$made/python.made"
    .venv/bin/python -m venv "$made/python"
    quietly pip "$made/python/bin/python" -m pip install -q --require-hashes -r "$requirements" || {
        say "cannot install the Python SDK: see above; try again when the package index can be reached"
        exit 1
    }
    mark python "$now"
}

suits() { # is this Node one that the SDK says it works with?
    node - <<'JS' >/dev/null 2>&1
const wanted = require("./tests/sdk/js/package-lock.json").packages["node_modules/e2b"].engines.node;
const parts = (text) => text.split(".").map(Number).concat(0, 0).slice(0, 3);
const compare = (a, b) => parts(a).map((part, at) => part - parts(b)[at]).find((difference) => difference) ?? 0;
const holds = (test) => {
  const [, sign, version] = /^(>=|<)(.+)$/.exec(test);
  const order = compare(process.versions.node, version);
  return sign === "<" ? order < 0 : order >= 0;
};
process.exit(wanted.split("||").some((all) => all.trim().split(/\s+/).every(holds)) ? 0 : 1);
JS
}

without_javascript() { # WHY WHAT-TO-DO
    rm -rf "$made/js" "$made/js.made"
    say "$1, so the tests with the JavaScript SDK are skipped"
    say "$2"
}

javascript_sdk() {
    local why="" now
    if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
        why="node and npm are missing"
    elif ! suits; then
        why="node $(node --version || true) is none that the SDK works with"
    fi
    if [ -n "$why" ]; then
        without_javascript "$why" "to install: Node 22 or newer with npm"
        return 0
    fi
    now=$({ node --version; cat tests/sdk/js/package.json tests/sdk/js/package-lock.json; } | sha256sum)
    if fresh js "$now" && [ -d "$made/js/node_modules/e2b" ]; then return 0; fi
    say "installing the public JavaScript SDK into $made/js"
    rm -rf "$made/js" "$made/js.made"
    mkdir -p "$made/js"
    cp tests/sdk/js/package.json tests/sdk/js/package-lock.json "$made/js/"
    quietly npm npm ci --prefix "$made/js" --no-audit --no-fund --ignore-scripts --fetch-retries 2 \
        --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 5000 || {
        without_javascript "npm cannot install it, as it says above" "it is tried again the next time"
        return 0
    }
    mark js "$now"
}

python_sdk
javascript_sdk
