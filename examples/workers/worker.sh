#!/bin/sh
# A worker for `solehold agent` as a shell script, for one resource (max_resources_per_worker: 1).
#
# The agent's socket is open already, under the number in SOLEHOLD_WORKER_FD: lines are read from it and written to it
# without any tool. docs/guides/workers.md describes them.

fd=$SOLEHOLD_WORKER_FD
say() { eval "printf '%s\n' \"\$1\" >&$fd"; }
field() { printf '%s' "$1" | sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p"; }

work() {
    count=0
    trap 'exit 0' TERM
    while :; do
        count=$((count + 1))
        echo "$SOLEHOLD_RESOURCE token $SOLEHOLD_TOKEN count $count"
        say '{"type":"heartbeat","stats":{}}'
        sleep "${WORK_EVERY_SECONDS:-1}"
    done
}

work &
worker=$!
say '{"type":"ready"}'
while eval "read -r line <&$fd"; do
    case $line in
        *'"type":"revoke"'*)
            kill "$worker"
            wait "$worker"
            say "{\"type\":\"drained\",\"id\":\"$(field "$line" id)\"}"
            ;;
        *'"type":"error"'*) echo "$line" >&2 ;;
    esac
done
