//! Where the files of the package under test are.

use std::{
    env,
    path::{Path, PathBuf},
};

/// A file of the package under test. Asked at run time, since a test may have been built for another clone.
///
/// # Panics
///
/// If neither cargo nor the working folder, in which cargo runs tests, says where the package is.
pub fn package_file(path: impl AsRef<Path>) -> PathBuf {
    let named = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let folder =
        named.or_else(|| env::current_dir().ok()).expect("run by cargo, or in the folder of the package");
    folder.join(path)
}
