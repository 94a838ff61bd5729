//! Relays of the real binary to real brokers: nothing is lost and every resource is in order, whatever breaks
//! (rule 20).

mod mqtt;
mod rabbitmq;
mod receiver;
mod webhook;
mod world;
