//! What the live views share: the watch as a stream of news, who holds what by it, and the screen.
//!
//! ```text
//!   feed (watch, resumes) ──> board (pure: who holds what, the last events) ──> top, demo ──> screen
//! ```

pub mod board;
pub mod feed;
pub mod pieces;
pub mod screen;
