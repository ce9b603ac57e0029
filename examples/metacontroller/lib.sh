# What the examples' run.sh share: an installation of their own, a hook server, waiting. To be sourced.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
work=$(mktemp -d)
hook_pid=

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

cleanup() {
    code=$?
    [ -z "$hook_pid" ] || kill "$hook_pid" 2>/dev/null || true
    if [ $code != 0 ]; then
        tail -n 20 "$work/hook.log" "$work/data/logs/server.log" 2>/dev/null || true
    fi
    "$kubestellar" down --data-dir "$work/data" >/dev/null 2>&1 || true
    rm -rf "$work"
    exit $code
}

need() { command -v "$1" >/dev/null || fail "$1 is needed"; }

# Spaces with Metacontroller; kubectl talks to wds1.
start_spaces() {
    need kubectl; need python3; need curl
    if [ -n "${KUBESTELLAR_BIN:-}" ]; then
        kubestellar=$KUBESTELLAR_BIN
    else
        (cd "$root" && cargo build --release --bin kubestellar)
        kubestellar=${CARGO_TARGET_DIR:-$root/target}/release/kubestellar
    fi
    trap cleanup EXIT
    "$kubestellar" up --metacontroller --clusters 0 --listen 127.0.0.1:0 --data-dir "$work/data" --no-kubeconfig-merge
    export KUBECONFIG=$work/data/kubeconfig
    kubectl config use-context wds1 >/dev/null
}

# Starts hook.py on a free port; $hook is its URL.
start_hook() {
    python3 "$here/hook.py" "$work/port" >"$work/hook.log" 2>&1 &
    hook_pid=$!
    for _ in $(seq 100); do [ -s "$work/port" ] && break; sleep 0.1; done
    [ -s "$work/port" ] || fail "the hook server did not start"
    hook=http://127.0.0.1:$(cat "$work/port")
}

# Applies a file in which HOOK stands for the hook's URL.
apply() { sed "s#HOOK#$hook#" "$here/$1" | kubectl apply -f -; }

# until_is WHAT EXPECTED COMMAND...: waits for the command to print exactly that.
until_is() {
    local what=$1 expected=$2 got=; shift 2
    for _ in $(seq 300); do
        got=$("$@" 2>/dev/null || true)
        if [ "$got" = "$expected" ]; then printf 'ok: %s: %s\n' "$what" "$got"; return; fi
        sleep 0.1
    done
    fail "$what is '$got' instead of '$expected'"
}
