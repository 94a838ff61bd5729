//! The machine's chance, replaced: whatever in this process asks the system for random bytes gets those of its seed.
//!
//! Hash maps, tokio's `select!` and the ids that a store makes are seeded by the system, each in its own way. They all
//! ask by the C function `getrandom`. This crate defines that function, so that the order of a hash map and the choice
//! of a branch are a part of a world, and a seed replays to the same log. Without a seed the kernel is asked.

use std::{
    fs::File,
    io::Read as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

static IS_SEEDED: AtomicBool = AtomicBool::new(false);
static STATE: AtomicU64 = AtomicU64::new(0);

/// From now on the bytes follow from this number. Call it before the thread of a world begins.
pub fn seed(seed: u64) {
    STATE.store(seed, Ordering::SeqCst);
    IS_SEEDED.store(true, Ordering::SeqCst);
}

fn fill(bytes: &mut [u8]) -> isize {
    if !IS_SEEDED.load(Ordering::SeqCst) {
        let read = File::open("/dev/urandom").and_then(|mut kernel| kernel.read_exact(bytes));
        return read.map_or(-1, |()| bytes.len() as isize);
    }
    for chunk in bytes.chunks_mut(8) {
        let mut x = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(x ^ (x >> 31)).to_le_bytes()[..chunk.len()]);
    }
    bytes.len() as isize
}

/// The C library's function of that name, in its place.
///
/// # Safety
///
/// `to` points to at least `length` bytes that may be written, as for the C library's.
#[allow(unsafe_code, reason = "the one way to give a dependency its random bytes")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(to: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: by the contract of the function.
    fill(unsafe { std::slice::from_raw_parts_mut(to, length) })
}
