//! Opens what a power loss has left, and compares it with what was answered.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use serde_json::json;
use solehold_api::{paths, resources::GrantBody};
use solehold_core::{
    command::{Acquire, AskedTenure, Command, Undeclared},
    key::{Document, LeaseId, Name, ResourceKey},
    outcome::Answer,
};
use solehold_engine::{
    Engine, EngineOptions,
    clock::ManualClock,
    embedded::{Folder, schema_version},
    resident::{Journal as _, ResidentStore},
};
use solehold_testkit::Solehold;
use uuid::Uuid;

use super::{
    DATA,
    client::{KIND, TENANT},
    disk::Tree,
    promises::Promises,
};

/// The resource that is acquired after the power loss.
const AFTER: &str = "after the power loss";

/// Who opens a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// The store, in this process.
    Store,
    /// `solehold serve`.
    Server,
}

/// Where states are built and opened.
#[derive(Debug)]
pub struct Bench {
    root: PathBuf,
    /// The database of the recording, which every state has: a store knows its database by its inode.
    database: PathBuf,
}

impl Bench {
    pub fn new(root: PathBuf, database: PathBuf) -> Self {
        Self { root, database }
    }

    /// What is wrong with a state after these answers.
    pub async fn judge(&self, tree: &Tree, promises: &Promises, opener: Opener) -> Result<Vec<String>> {
        if self.root.exists() {
            fs::remove_dir_all(&self.root)?;
        }
        self.build(&self.root, tree)?;
        let folder = self.root.join(DATA);
        let database = folder.join("solehold.db");
        let is_there = database.exists();
        let wrong = match opener {
            Opener::Store => opened(&folder, promises).await,
            Opener::Server => served(&folder, promises).await,
        };
        let wrong = match wrong {
            Ok(wrong) => wrong,
            Err(error) => vec![format!("it does not open: {error:#}")],
        };
        if is_there {
            fs::rename(&database, &self.database)?;
        }
        Ok(wrong)
    }

    fn build(&self, path: &Path, tree: &Tree) -> Result<()> {
        match tree {
            Tree::Folder(entries) => {
                fs::create_dir(path)?;
                for (name, tree) in entries {
                    self.build(&path.join(name), tree)?;
                }
            }
            Tree::File(content) => {
                if path.ends_with("solehold.db") {
                    fs::rename(&self.database, path)?;
                }
                let mut file = File::create(path).with_context(|| path.display().to_string())?;
                file.write_all(content)?;
            }
        }
        Ok(())
    }
}

/// Starts on a folder as a server does after a power loss, and looks at what it finds.
async fn opened(folder: &Path, promises: &Promises) -> Result<Vec<String>> {
    schema_version(folder).context("its version cannot be read")?;
    let image = Folder::open(folder)?.load()?;
    let mut wrong = promises.broken(&image, key)?;
    if let Some(set_back) = &image.set_back {
        wrong.push(format!("it is taken for a restored folder: {}", set_back.why));
    }
    // A clock that begins again, as that of a machine does that has just started.
    let clock = Arc::new(ManualClock::default());
    let store = ResidentStore::embedded_with(Folder::open(folder)?, clock, Default::default())?;
    let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
    let granted = engine.submit(acquire()?).await;
    engine.stop().await;
    match granted {
        Ok(Ok(Answer::Granted(grant))) => wrong.extend(goes_back(grant.lease.lease.token.0, promises)),
        other => wrong.push(format!("it grants nothing: {other:?}")),
    }
    Ok(wrong)
}

/// Starts a server on a folder, and acquires.
async fn served(folder: &Path, promises: &Promises) -> Result<Vec<String>> {
    let server = Solehold::builder().data_dir(folder).start().await?;
    let url = format!("{}{}", server.url(), paths::resource_lease(KIND, AFTER));
    let answer = reqwest::Client::new().post(url).json(&json!({ "holder": "bea" })).send().await?;
    let answer = answer.error_for_status().with_context(|| server.logs())?;
    let grant: GrantBody = answer.json().await?;
    server.kill9().await?;
    Ok(goes_back(grant.lease.token, promises).into_iter().collect())
}

fn goes_back(token: u64, promises: &Promises) -> Option<String> {
    let last = promises.token();
    (token <= last).then(|| format!("token {token} is granted after {last}"))
}

fn key(name: &str) -> Result<ResourceKey> {
    Ok(ResourceKey::new(Name::new(TENANT)?, Name::new(KIND)?, Name::new(name)?))
}

fn acquire() -> Result<Command> {
    let key = key(AFTER)?;
    Ok(Command::Acquire(Acquire {
        lease: LeaseId::new(&key, Uuid::from_u128(1)),
        key,
        holder: Name::new("bea")?,
        tenure: AskedTenure::Own { ttl_ms: 10_000 },
        request: None,
        attributes: Document::default(),
        undeclared: Undeclared::Allow,
        wait: None,
        slots: None,
        holds_at_most: None,
    }))
}
