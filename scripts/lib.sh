# Shared by the scripts here: the binary under test and a server that goes away with the script.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The release binary, built unless KUBESTELLAR_BIN names one.
kubestellar_bin() {
    if [ -n "${KUBESTELLAR_BIN:-}" ]; then
        echo "$KUBESTELLAR_BIN"
        return
    fi
    (cd "$root" && cargo build --release --locked --quiet --bin kubestellar) >&2 || exit 1
    echo "${CARGO_TARGET_DIR:-$root/target}/release/kubestellar"
}

# grep -q for pipes: it reads to the end, since under pipefail a writer that is cut off fails the pipe.
has() {
    local text
    text=$(cat)
    grep -q "$@" <<<"$text"
}

# Waits until a command succeeds: wait_for SECONDS COMMAND...
wait_for() {
    local deadline=$(($(date +%s) + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        if [ "$(date +%s)" -ge "$deadline" ]; then
            echo "timed out waiting for: $*" >&2
            return 1
        fi
        sleep 0.05
    done
}
