#!/bin/sh
# kafka-topics.sh --bootstrap-server HOST:PORT --create --if-not-exists --topic NAME ... as the compose file asks a
# current Kafka for it. This version is asked through ZooKeeper, which is beside the broker, and knows no such condition.
set -eu
broker=$2
zookeeper=${broker%:*}:2181
topic=$6
shift 4
topics() {
    /opt/kafka/bin/kafka-class kafka.admin.TopicCommand --zookeeper "$zookeeper" "$@"
}
# Not before there is a broker: the container would be restarted, and with each restart podman's names fail for a moment.
tries=60
until /opt/kafka/bin/kafka-broker-api-versions.sh --bootstrap-server "$broker" 2>/dev/null || [ $tries -eq 0 ]; do
    tries=$((tries - 1))
    sleep 1
done
topics --list | grep -qx "$topic" || topics --create "$@"
