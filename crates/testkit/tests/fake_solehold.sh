#!/bin/sh
# Stands in for the solehold binary in the tests of the process handle: says where it listens, shows what it was
# given, and ends with status 7 on SIGTERM. FAKE_LAST_WORDS are printed some time after that.
trap 'echo "goodbye"; [ "$FAKE_LAST_WORDS" ] && { sleep 0.3; echo "$FAKE_LAST_WORDS"; } & exit 7' TERM
[ "$1" = serve ] || exit 64
[ "$FAKE_FAILS" ] && { echo "cannot serve: $FAKE_FAILS" >&2; exit 3; }
echo "solehold listening on http://127.0.0.1:4711 (engine fake, node n)"
echo "arguments: $*" >&2
echo "inherited: ${SOLEHOLD_TESTKIT_INHERITED-nothing}, day: $(date -u +%Y-%m-%d)"
while :; do sleep 0.02; done
