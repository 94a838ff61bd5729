//! The socket of an agent's workers.

use solehold_agent::worker::read_in_pieces;

/// The same messages come out whatever the pieces.
pub fn line(bytes: &[u8]) {
    assert_eq!(read_in_pieces(bytes, bytes.len().max(1)), read_in_pieces(bytes, 3));
}
