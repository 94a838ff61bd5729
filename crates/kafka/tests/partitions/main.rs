//! Consumers of partitions against a real broker and a real PostgreSQL: whatever happens to them, every message takes
//! effect once.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod faults;
mod first_start;
mod kit;
mod lane;
mod members;
mod messages;
mod modes;
mod standstill;

#[tokio::test]
async fn a_consumer_in_a_process_of_its_own() {
    kit::be_child().await;
}
