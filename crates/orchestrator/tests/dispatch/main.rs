//! Tasks to real workers, and their reports.

mod celery;
mod http;
mod kafka;
mod world;
