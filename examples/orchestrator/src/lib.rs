//! The video pipeline of the orchestrator's document, in files beside this one:
//!
//! ```text
//!   produce.py ──> Kafka ──> solehold orchestrator --config orchestrator.yaml ──> worker.py (Celery)
//!
//!               ┌──> detect_players ──┐
//!   decode ─────┤                     ├──> render
//!               └──> detect_ball ─────┘
//! ```
//!
//! `control/check_work_mark.py` is the loop that it is compared with. `tests/orchestrator_e2e` runs both under faults.
