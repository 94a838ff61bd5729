#!/bin/bash
# kafka-broker-api-versions.sh --bootstrap-server HOST:PORT succeeds when a broker listens there. This version cannot
# be asked for more.
exec 3<>"/dev/tcp/${2%:*}/${2#*:}"
