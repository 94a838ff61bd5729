//! One file per rule of docs/protocol.md; each example is a short story that compares everything that was decided.

#[path = "../common/mod.rs"]
mod common;

mod batches;
mod ledger;
mod names;
mod records;
mod rows;
mod rule_01_one_clock;
mod rule_03_restart;
mod rule_05_tokens;
mod rule_06_proof;
mod rule_07_requests;
mod rule_09_sessions;
mod rule_11_expiry;
mod rule_12_held_back;
mod rule_13_new_session;
mod rule_14_takeover;
mod rule_15_waiting;
mod rule_16_hand_over;
mod rule_17_state;
mod rule_26_keys;
mod rule_29_shared;
mod undeclared;
mod words;
