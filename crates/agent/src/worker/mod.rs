//! A worker: a program that works on resources, kept by a keeper, spoken to by a socket.
//!
//! ```text
//!   supervision  when it is healthy, when it is ended, when it is started again; pure
//!   protocol     messages between agent and worker              notify   the same for programs written for systemd
//!   host         one run of it: keeper, sockets (link), output
//! ```

mod host;
mod link;
mod notify;
mod output;
mod protocol;
mod supervision;

pub use host::{DesiredState, Host, Run, notify_path, socket_path};
pub use notify::Notice;
#[doc(hidden)] // for the fuzz targets
pub use protocol::read_in_pieces;
pub use protocol::{Assignment, FromWorker, LINE_BYTES_MAX, MessageError, ToWorker};
pub use supervision::{Bounds, Fault, Next, Protocol, Supervision};
