//! The configurations that were read last, kept in a folder: an agent that starts again goes on with them while the
//! server cannot tell what they are now.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use solehold_client::ResourceName;

/// Most configurations that are kept. When the agent starts, the oldest beyond that go.
const KEPT_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct Cache {
    folder: Option<PathBuf>,
}

/// One of them, as it is in its file.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    resource: String,
    config: Value,
}

impl Cache {
    /// Opens a folder, and makes it if it is not there.
    pub fn open(folder: Option<&Path>) -> io::Result<Self> {
        let Some(folder) = folder else { return Ok(Self::default()) };
        // Addresses and passwords of cameras are in it.
        fs::DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
        remove_oldest(folder, KEPT_MAX)?;
        Ok(Self { folder: Some(folder.to_owned()) })
    }

    /// Keeps a configuration. If that does not succeed, the agent does without.
    pub fn keep(&self, resource: &ResourceName, config: &Value) {
        let Some(file) = self.file(resource) else { return };
        if self.last(resource).as_ref() == Some(config) {
            return;
        }
        let kept = Kept { resource: resource.to_string(), config: config.clone() };
        if let Err(error) = write_whole(&file, &kept) {
            tracing::warn!(%resource, %error, file = %file.display(), "cannot cache the resource's configuration");
        }
    }

    pub fn last(&self, resource: &ResourceName) -> Option<Value> {
        let text = fs::read(self.file(resource)?).ok()?;
        let kept: Kept = serde_json::from_slice(&text).ok()?;
        (kept.resource == resource.to_string()).then_some(kept.config)
    }

    pub fn forget(&self, resource: &ResourceName) {
        if let Some(file) = self.file(resource) {
            let _ = fs::remove_file(file);
        }
    }

    /// Names may be longer than those of files, and have other characters.
    fn file(&self, resource: &ResourceName) -> Option<PathBuf> {
        let mut hasher = DefaultHasher::new();
        resource.to_string().hash(&mut hasher);
        Some(self.folder.as_ref()?.join(format!("{:016x}.json", hasher.finish())))
    }
}

/// Replaces a file, so that there is a whole one at any time.
fn write_whole(file: &Path, kept: &Kept) -> io::Result<()> {
    let next = file.with_extension("next");
    let text = serde_json::to_vec(kept)?;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(&next)?.write_all(&text)?;
    fs::rename(next, file)
}

fn remove_oldest(folder: &Path, most: usize) -> io::Result<()> {
    let is_kept = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let mut files: Vec<(SystemTime, PathBuf)> = fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(is_kept)
        .filter_map(|path| Some((fs::metadata(&path).and_then(|seen| seen.modified()).ok()?, path)))
        .collect();
    files.sort_unstable();
    let surplus = files.len().saturating_sub(most);
    for (_, path) in &files[..surplus] {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn camera(key: &str) -> ResourceName {
        ResourceName::new("camera", key).expect("a name")
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart_and_for_its_resource_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("made/on/the/way");
        let cache = Cache::open(Some(&place)).expect("a cache");
        let one = camera("cam-1");
        let two = camera(&"x/ü".repeat(60));
        cache.keep(&one, &json!({"fps": 5}));
        cache.keep(&two, &json!({"fps": 6}));
        cache.keep(&one, &json!({"fps": 7}));
        let cache = Cache::open(Some(&place)).expect("a cache");
        assert_eq!((cache.last(&one), cache.last(&two)), (Some(json!({"fps": 7})), Some(json!({"fps": 6}))));
        fs::write(cache.file(&two).expect("a file"), "{").expect("written");
        assert_eq!(cache.last(&two), None, "half a file is none");
        cache.forget(&one);
        assert_eq!(cache.last(&one), None);
        assert_eq!(Cache::default().last(&one), None);
    }

    #[test]
    fn the_oldest_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(Some(folder.path())).expect("a cache");
        for n in 0..5 {
            cache.keep(&camera(&format!("cam-{n}")), &json!(n));
        }
        remove_oldest(folder.path(), 3).expect("removed");
        assert_eq!((0..5).filter(|n| cache.last(&camera(&format!("cam-{n}"))).is_some()).count(), 3);
    }
}
