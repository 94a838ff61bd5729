//! The video pipeline of the orchestrator's document.
