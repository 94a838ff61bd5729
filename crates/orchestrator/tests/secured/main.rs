//! Brokers that are reached by TLS, and brokers that ask for a login: the real binary, Apache Kafka and PostgreSQL.

mod front;
mod sasl;
mod tls;
mod world;
