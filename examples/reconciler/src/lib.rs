//! A whole system: an API for payment requests, and workers that reconcile them with a (simulated) chain.
//!
//! ```text
//!   POST /payment-requests ──> app.payment_requests <── claim ── reconciler (any number of processes)
//!   (Idempotency-Key)               │  status                      │ observe
//!   GET  /payment-requests          │                              v
//!                                   └── transition + app.payment_outbox, one transaction <── the chain
//!
//!   pending ──> detected ──> confirmed        pending ──> expired
//!                  │  ^                       (never paid in time)
//!                  v  │
//!                reorged
//! ```

pub mod api;
pub mod chain;
pub mod observer;
pub mod settings;
pub mod store;
