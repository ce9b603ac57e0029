# What the examples' run.sh share: an installation of their own, a hook server, waiting, counting, cleaning up. To be sourced.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
work=$(mktemp -d)
kubestellar=
hook_pid=
checks=0

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
finish() { say "done: all $checks checks passed"; }

# However it ends, nothing is left: no process, no file.
cleanup() {
    code=$?
    trap - EXIT
    trap '' INT TERM
    if [ $code != 0 ]; then
        printf '\n== ended with code %s; what was logged last:\n' $code >&2
        tail -n 20 "$work/hook.log" "$work/data/logs/server.log" >&2 2>/dev/null || true
    fi
    if [ -n "$hook_pid" ]; then kill "$hook_pid" 2>/dev/null || true; wait "$hook_pid" 2>/dev/null || true; fi
    [ ! -d "$work/data" ] || "$kubestellar" down --data-dir "$work/data" >/dev/null 2>&1 || true
    rm -rf "$work"
    exit $code
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

need() { command -v "$1" >/dev/null || fail "$1 is needed${2:+ ($2)}"; }

# Spaces with Metacontroller, on a free port and in a directory of their own; kubectl talks to wds1.
start_spaces() {
    need kubectl "1.24 or newer"; need python3
    if [ -n "${KUBESTELLAR_BIN:-}" ]; then
        kubestellar=$KUBESTELLAR_BIN
    else
        need cargo "or name a binary by KUBESTELLAR_BIN"
        say "building kubestellar; the first time this takes some minutes"
        (cd "$root" && cargo build --release --locked --bin kubestellar)
        kubestellar=${CARGO_TARGET_DIR:-$root/target}/release/kubestellar
    fi
    say "an installation of its own in $work"
    mkdir "$work/data"
    "$kubestellar" up --metacontroller --clusters 0 --listen 127.0.0.1:0 --data-dir "$work/data" --no-kubeconfig-merge
    export KUBECONFIG=$work/data/kubeconfig KUBECACHEDIR=$work/cache
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

# post PATH BODY: to the hook server.
post() { python3 -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], sys.argv[2].encode()).read()' "$hook$1" "$2"; }

# Applies a file in which HOOK stands for the hook's URL.
apply() { sed "s#HOOK#$hook#" "$here/$1" | kubectl apply -f -; }

# until_is WHAT EXPECTED COMMAND...: waits for the command to print exactly that.
until_is() {
    local what=$1 expected=$2 got=; shift 2
    for _ in $(seq 300); do
        got=$("$@" 2>/dev/null || true)
        if [ "$got" = "$expected" ]; then
            printf 'ok: %s: %s\n' "$what" "${got:-none}"
            checks=$((checks + 1))
            return
        fi
        sleep 0.1
    done
    fail "$what: '$got' instead of '$expected'"
}
