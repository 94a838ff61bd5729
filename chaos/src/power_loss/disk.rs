//! What a disk has of a folder, and what it may have after a power loss.
//!
//! Syncing a file makes what was written to it before durable, and nothing else; syncing a folder makes its names
//! durable: files and folders that were made, renamed and removed in it. What was not synced may be there, wholly or in
//! part, or not, in any order. This is what POSIX promises. Most file systems keep more.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use rand::{RngExt as _, rngs::StdRng};

use super::{
    trace::{Call, opened},
    unsynced::Unsynced,
};

/// What a write can be torn into: as little as a sector of an old disk, or a page of memory.
const TORN_BYTES: [usize; 2] = [512, 4096];
/// Files whose content is not followed, since no start depends on it: SQLite's index of its log, which is mapped memory
/// and is rebuilt when the database is opened, and the process id in the lock.
const UNREAD: [&str; 2] = ["-shm", "/lock"];

type NodeId = usize;
type Names = BTreeMap<String, NodeId>;

/// A folder with everything in it, as it is and as far as it is durable.
#[derive(Debug)]
pub struct Disk {
    root: PathBuf,
    /// The first is the root.
    nodes: Vec<Node>,
    /// Where the next `write` of an open file goes.
    positions: HashMap<(NodeId, usize), usize>,
    without: Option<Unsynced>,
    /// The folder in which the last call has renamed something.
    renamed_in: Option<NodeId>,
}

#[derive(Debug)]
enum Node {
    File { durable: Vec<u8>, pending: Vec<Pending<Change>>, is_unread: bool },
    Folder { durable: Names, pending: Vec<Pending<NameChange>> },
}

/// What is not durable yet.
#[derive(Debug)]
struct Pending<T> {
    /// The line at which the call ended.
    ended: usize,
    change: T,
}

#[derive(Debug)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

/// Names, and what they stand for from now on. A rename changes two of them at once.
type NameChange = Vec<(String, Option<NodeId>)>;

/// What a call has done to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    Changed,
    Synced,
    /// It would have synced something, and is left out.
    LeftOut,
}

/// What is there after a power loss.
#[derive(Debug, PartialEq, Eq)]
pub enum Tree {
    File(Vec<u8>),
    Folder(BTreeMap<String, Tree>),
}

/// How much of what is not durable survives.
#[derive(Debug)]
pub enum Survival {
    Nothing,
    Everything,
    /// As chance has it.
    Part(Box<StdRng>),
}

impl Disk {
    /// A disk on which `root` is there, and empty.
    pub fn new(root: &Path, without: Option<Unsynced>) -> Self {
        let nodes = vec![Node::Folder { durable: Names::new(), pending: Vec::new() }];
        Self { root: root.to_owned(), nodes, positions: HashMap::new(), without, renamed_in: None }
    }

    /// Does what a call did.
    pub fn apply(&mut self, call: &Call) -> Result<Effect> {
        self.try_apply(call).with_context(|| format!("line {} of the recording: {}", call.ended, call.name))
    }

    fn try_apply(&mut self, call: &Call) -> Result<Effect> {
        if call.has_failed() {
            return Ok(Effect::Nothing);
        }
        match call.name.as_str() {
            "open" => self.open(call, call.argument(1)?),
            "creat" => self.open(call, "O_CREAT|O_TRUNC"),
            "openat" => self.open(call, call.argument(2)?),
            "read" | "readv" => self.moved(call, |position, count| position + count),
            "lseek" => self.moved(call, |_, to| to),
            "write" => self.write_on(call, call.bytes(1).map(<[u8]>::to_vec)),
            "writev" => self.write_on(call, call.pieces(1)),
            "pwrite64" => self.write(call, call.bytes(1).map(<[u8]>::to_vec), None),
            "pwritev" => self.write(call, call.pieces(1), None),
            "ftruncate" => {
                let node = self.file_of(call)?;
                self.change(call, node, || Ok(Change::Length(call.number(1)?)))
            }
            "mkdir" => self.make_folder(call, 0),
            "mkdirat" => self.make_folder(call, 1),
            "rename" => self.rename(call, 0, 1),
            "renameat" | "renameat2" => self.rename(call, 1, 3),
            "unlink" | "rmdir" => self.remove(call, 0),
            "unlinkat" => self.remove(call, 1),
            "fsync" | "fdatasync" => self.sync(call),
            // Promises nothing.
            "sync_file_range" => Ok(Effect::Nothing),
            "mmap" => self.map(call),
            other => {
                let root = self.root.to_string_lossy();
                let is_here = call.arguments.iter().any(|argument| argument.contains(&root));
                ensure!(!is_here, "{other} is not followed: {:?}", call.arguments);
                Ok(Effect::Nothing)
            }
        }
    }

    /// The names of a path below the root; none if it is elsewhere.
    fn below<'a>(&self, path: &'a Path) -> Result<Option<Vec<&'a str>>> {
        let Ok(rest) = path.strip_prefix(&self.root) else { return Ok(None) };
        let name = |part| match part {
            Component::Normal(name) => name.to_str().context("a name that is not UTF-8"),
            _ => bail!("{} is not plain", path.display()),
        };
        rest.components().map(name).collect::<Result<Vec<_>>>().map(Some)
    }

    /// The folder that a path is in, and its name there; none if it is elsewhere.
    fn place<'a>(&self, path: &'a Path) -> Result<Option<(NodeId, &'a str)>> {
        let Some(names) = self.below(path)? else { return Ok(None) };
        let Some((last, folders)) = names.split_last() else { return Ok(None) };
        let folder = folders.iter().try_fold(0, |folder, name| self.names(folder)?.get(*name).copied());
        let folder = folder.with_context(|| format!("nothing has made {}", path.display()))?;
        Ok(Some((folder, last)))
    }

    /// What a path stands for now; none if it is elsewhere, or not there.
    fn find(&self, path: &Path) -> Result<Option<NodeId>> {
        if path == self.root {
            return Ok(Some(0));
        }
        let Some((folder, name)) = self.place(path)? else { return Ok(None) };
        Ok(self.names(folder).and_then(|names| names.get(name).copied()))
    }

    /// The names in a folder now.
    fn names(&self, folder: NodeId) -> Option<Names> {
        let Node::Folder { durable, pending } = &self.nodes[folder] else { return None };
        Some(renamed(durable.clone(), pending.iter()))
    }

    /// The file that a call writes to, by its first argument; none if it is elsewhere.
    fn file_of(&self, call: &Call) -> Result<Option<NodeId>> {
        match call.file(0) {
            Ok((_, Some(path))) => self.find(&path),
            // A pipe or a socket, or a file without a name.
            _ => Ok(None),
        }
    }

    fn open(&mut self, call: &Call, flags: &str) -> Result<Effect> {
        let (number, Some(path)) = opened(&call.result)? else { return Ok(Effect::Nothing) };
        if path == self.root {
            return Ok(Effect::Nothing);
        }
        let Some((folder, name)) = self.place(&path)? else { return Ok(Effect::Nothing) };
        ensure!(!flags.contains("O_APPEND") && !flags.contains("O_TMPFILE"), "{flags} is not followed");
        let mut effect = Effect::Nothing;
        let node = match self.find(&path)? {
            Some(node) => node,
            None => {
                ensure!(flags.contains("O_CREAT"), "{} was opened, and nothing has made it", path.display());
                let node = self.add(Node::File {
                    durable: Vec::new(),
                    pending: Vec::new(),
                    is_unread: is_unread(&path),
                });
                self.change_names(call, folder, vec![(name.to_owned(), Some(node))])?;
                effect = Effect::Changed;
                node
            }
        };
        self.positions.insert((node, number), 0);
        if flags.contains("O_TRUNC") {
            effect = self.change(call, Some(node), || Ok(Change::Length(0)))?;
        }
        Ok(effect)
    }

    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn moved(&mut self, call: &Call, to: impl Fn(usize, usize) -> usize) -> Result<Effect> {
        if let Some(node) = self.file_of(call)? {
            let (number, _) = call.file(0)?;
            let position = self.positions.entry((node, number)).or_default();
            *position = to(*position, call.count()?);
        }
        Ok(Effect::Nothing)
    }

    /// A write at the position of the open file.
    fn write_on(&mut self, call: &Call, bytes: Result<Vec<u8>>) -> Result<Effect> {
        let Some(node) = self.file_of(call)? else { return Ok(Effect::Nothing) };
        let (number, _) = call.file(0)?;
        let at = self.positions.get(&(node, number)).copied().context("a file that nothing has opened")?;
        self.moved(call, |position, count| position + count)?;
        self.write(call, bytes, Some(at))
    }

    fn write(&mut self, call: &Call, bytes: Result<Vec<u8>>, at: Option<usize>) -> Result<Effect> {
        let node = self.file_of(call)?;
        self.change(call, node, || {
            let mut bytes = bytes?;
            bytes.truncate(call.count()?);
            Ok(Change::Write { at: at.map_or_else(|| call.number(3), Ok)?, bytes })
        })
    }

    fn change(
        &mut self,
        call: &Call,
        node: Option<NodeId>,
        change: impl FnOnce() -> Result<Change>,
    ) -> Result<Effect> {
        let Some(node) = node else { return Ok(Effect::Nothing) };
        let Node::File { pending, is_unread, .. } = &mut self.nodes[node] else { bail!("it is a folder") };
        if *is_unread {
            return Ok(Effect::Nothing);
        }
        pending.push(Pending { ended: call.ended, change: change()? });
        self.renamed_in = None;
        Ok(Effect::Changed)
    }

    fn change_names(&mut self, call: &Call, folder: NodeId, change: NameChange) -> Result<Effect> {
        let Node::Folder { pending, .. } = &mut self.nodes[folder] else { bail!("it is a file") };
        pending.push(Pending { ended: call.ended, change });
        self.renamed_in = None;
        Ok(Effect::Changed)
    }

    fn make_folder(&mut self, call: &Call, path: usize) -> Result<Effect> {
        let path = call.path(path)?;
        let Some((folder, name)) = self.place(&path)? else { return Ok(Effect::Nothing) };
        let node = self.add(Node::Folder { durable: Names::new(), pending: Vec::new() });
        self.change_names(call, folder, vec![(name.to_owned(), Some(node))])
    }

    fn rename(&mut self, call: &Call, from: usize, to: usize) -> Result<Effect> {
        let [from, to] = [call.path(from)?, call.path(to)?];
        let [before, after] = [self.place(&from)?, self.place(&to)?];
        let (Some((folder, from)), Some((other, to))) = (before, after) else {
            ensure!(before.is_none() && after.is_none(), "a rename out of the folder, or into it");
            return Ok(Effect::Nothing);
        };
        ensure!(folder == other, "a rename from one folder to another");
        let node = self.names(folder).and_then(|names| names.get(from).copied());
        let node = node.with_context(|| format!("nothing has made {from}"))?;
        let change = vec![(from.to_owned(), None), (to.to_owned(), Some(node))];
        let effect = self.change_names(call, folder, change);
        self.renamed_in = Some(folder);
        effect
    }

    fn remove(&mut self, call: &Call, path: usize) -> Result<Effect> {
        let path = call.path(path)?;
        let Some((folder, name)) = self.place(&path)? else { return Ok(Effect::Nothing) };
        self.change_names(call, folder, vec![(name.to_owned(), None)])
    }

    fn sync(&mut self, call: &Call) -> Result<Effect> {
        let (_, Some(path)) = call.file(0)? else { return Ok(Effect::Nothing) };
        let Some(node) = self.find(&path)? else { return Ok(Effect::Nothing) };
        let is_after_rename = self.renamed_in == Some(node);
        let is_folder = matches!(self.nodes[node], Node::Folder { .. });
        if self.without.is_some_and(|without| without.leaves_out(&path, is_folder, is_after_rename)) {
            return Ok(Effect::LeftOut);
        }
        match &mut self.nodes[node] {
            Node::File { durable, pending, .. } => {
                for change in synced(pending, call.began) {
                    write_to(durable, &change);
                }
            }
            Node::Folder { durable, pending } => {
                *durable = renamed(std::mem::take(durable), synced(pending, call.began).iter());
            }
        }
        self.renamed_in = None;
        Ok(Effect::Synced)
    }

    fn map(&mut self, call: &Call) -> Result<Effect> {
        let writes = call.argument(2)?.contains("PROT_WRITE") && call.argument(3)?.contains("MAP_SHARED");
        if writes && let Ok((_, Some(path))) = call.file(4) {
            let is_here = path.starts_with(&self.root) && !is_unread(&path);
            ensure!(!is_here, "{} is mapped, and what is written there is not seen", path.display());
        }
        Ok(Effect::Nothing)
    }

    /// What is there if the power is lost now.
    pub fn after_power_loss(&self, survival: &mut Survival) -> Tree {
        self.tree(0, survival)
    }

    fn tree(&self, node: NodeId, survival: &mut Survival) -> Tree {
        match &self.nodes[node] {
            Node::File { durable, pending, .. } => Tree::File(survival.content(durable, pending)),
            Node::Folder { durable, pending } => {
                let names = survival.names(durable, pending);
                Tree::Folder(
                    names.into_iter().map(|(name, node)| (name, self.tree(node, survival))).collect(),
                )
            }
        }
    }
}

fn is_unread(path: &Path) -> bool {
    UNREAD.iter().any(|ending| path.to_string_lossy().ends_with(ending))
}

/// Takes those that ended before a sync began.
fn synced<T>(pending: &mut Vec<Pending<T>>, began: usize) -> Vec<Pending<T>> {
    let count = pending.iter().take_while(|change| change.ended < began).count();
    pending.drain(..count).collect()
}

fn renamed<'a>(mut names: Names, changes: impl Iterator<Item = &'a Pending<NameChange>>) -> Names {
    for (name, node) in changes.flat_map(|change| &change.change) {
        match node {
            Some(node) => drop(names.insert(name.clone(), *node)),
            None => drop(names.remove(name)),
        }
    }
    names
}

fn write_to(content: &mut Vec<u8>, pending: &Pending<Change>) {
    match &pending.change {
        Change::Write { at, bytes } => put(content, *at, bytes),
        Change::Length(length) => content.resize(*length, 0),
    }
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}

impl Survival {
    fn names(&mut self, durable: &Names, pending: &[Pending<NameChange>]) -> Names {
        let durable = durable.clone();
        match self {
            Self::Nothing => durable,
            Self::Everything => renamed(durable, pending.iter()),
            Self::Part(chance) => {
                let often = often(chance);
                let mut survive = || chance.random_bool(often);
                renamed(durable, pending.iter().filter(|_| survive()))
            }
        }
    }

    fn content(&mut self, durable: &[u8], pending: &[Pending<Change>]) -> Vec<u8> {
        let mut content = durable.to_vec();
        match self {
            Self::Nothing => {}
            Self::Everything => pending.iter().for_each(|change| write_to(&mut content, change)),
            Self::Part(chance) => {
                let often = often(chance);
                let torn_bytes = TORN_BYTES[chance.random_range(0..TORN_BYTES.len())];
                for change in pending {
                    match &change.change {
                        Change::Write { at, bytes } => {
                            for (at, piece) in torn(*at, bytes, torn_bytes) {
                                if chance.random_bool(often) {
                                    put(&mut content, at, piece);
                                }
                            }
                        }
                        Change::Length(_) if chance.random_bool(often) => write_to(&mut content, change),
                        Change::Length(_) => {}
                    }
                }
            }
        }
        content
    }
}

/// How often something survives: of one file or folder little, of another much.
fn often(chance: &mut StdRng) -> f64 {
    [0.0, 0.1, 0.5, 0.9, 1.0][chance.random_range(0..5)]
}

/// The pieces into which a write can be torn: at multiples of `torn_bytes` of the file.
fn torn(at: usize, bytes: &[u8], torn_bytes: usize) -> Vec<(usize, &[u8])> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    let mut at = at;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(torn_bytes - at % torn_bytes));
        pieces.push((at, piece));
        at += piece.len();
        rest = after;
    }
    pieces
}

impl Tree {
    /// What is in a folder.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Ok(Self::File(fs::read(path)?));
        }
        let entry = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), Self::read(&entry.path())?))
        };
        Ok(Self::Folder(fs::read_dir(path)?.map(entry).collect::<Result<_>>()?))
    }

    /// What differs from `other`, as paths.
    pub fn differences(&self, other: &Self, path: &Path) -> Vec<String> {
        match (self, other) {
            (Self::Folder(here), Self::Folder(there)) => {
                let all: std::collections::BTreeSet<&String> = here.keys().chain(there.keys()).collect();
                let differences = all.into_iter().flat_map(|name| {
                    let path = path.join(name);
                    match (here.get(name), there.get(name)) {
                        (Some(here), Some(there)) => here.differences(there, &path),
                        _ => vec![path.display().to_string()],
                    }
                });
                differences.collect()
            }
            _ if self == other || is_unread(path) => Vec::new(),
            _ => vec![path.display().to_string()],
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;
    use crate::power_loss::trace;

    /// A disk after these calls, in which each `@` stands for the root.
    fn after(calls: &[&str]) -> Disk {
        let root = Path::new("/place");
        let text: String = calls.iter().map(|call| call.replace('@', "/place") + "\n").collect();
        let mut disk = Disk::new(root, None);
        for call in trace::parse(&text, &[root]).expect("a recording") {
            disk.apply(&call).expect("a call that is known");
        }
        disk
    }

    /// The files of the root, with what is in them.
    fn files(disk: &Disk, mut survival: Survival) -> Vec<(String, String)> {
        let Tree::Folder(entries) = disk.after_power_loss(&mut survival) else { panic!("a folder") };
        let text = |tree| match tree {
            Tree::File(content) => String::from_utf8(content).expect("text"),
            Tree::Folder(entries) => format!("{:?}", entries.keys()),
        };
        entries.into_iter().map(|(name, tree)| (name, text(tree))).collect()
    }

    fn file(name: &str, content: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), content.to_owned())]
    }

    const MADE: &str = "7 openat(AT_FDCWD</>, \"@/a\", O_RDWR|O_CREAT, 0600) = 3<@/a>";
    const WRITTEN: &str = "7 write(3<@/a>, \"one\", 3) = 3";
    const SYNCED: &str = "7 fdatasync(3<@/a>) = 0";
    const NAMED: &str = "7 fsync(4<@>) = 0";

    #[test]
    fn a_file_survives_if_it_was_synced_and_its_name_if_the_folder_was() {
        let unnamed = after(&[MADE, WRITTEN, SYNCED]);
        assert_eq!(files(&unnamed, Survival::Nothing), []);
        assert_eq!(files(&unnamed, Survival::Everything), file("a", "one"));
        assert_eq!(files(&after(&[MADE, WRITTEN, NAMED]), Survival::Nothing), file("a", ""));
        let durable = after(&[MADE, WRITTEN, SYNCED, NAMED, "7 ftruncate(3<@/a>, 2) = 0"]);
        assert_eq!(files(&durable, Survival::Nothing), file("a", "one"));
        assert_eq!(files(&durable, Survival::Everything), file("a", "on"));
    }

    #[test]
    fn a_sync_keeps_what_had_ended_before_it_began() {
        let [begun, ended] = ["7 fdatasync(3<@/a> <unfinished ...>", "7 <... fdatasync resumed>) = 0"];
        let meanwhile = "8 pwrite64(3<@/a>, \"two\", 3, 3) = 3";
        let disk = after(&[MADE, NAMED, WRITTEN, begun, meanwhile, ended]);
        assert_eq!(files(&disk, Survival::Nothing), file("a", "one"));
        assert_eq!(files(&disk, Survival::Everything), file("a", "onetwo"));
    }

    #[test]
    fn a_renamed_file_has_its_old_name_or_its_new_one() {
        let disk = after(&[MADE, WRITTEN, SYNCED, NAMED, "7 rename(\"@/a\", \"@/b\") = 0"]);
        for seed in 0..20 {
            let part = Survival::Part(Box::new(StdRng::seed_from_u64(seed)));
            let found = files(&disk, part);
            assert!(found == file("a", "one") || found == file("b", "one"), "{found:?}");
        }
        let kept = after(&[MADE, WRITTEN, SYNCED, "7 rename(\"@/a\", \"@/b\") = 0", NAMED]);
        assert_eq!(files(&kept, Survival::Nothing), file("b", "one"));
        let gone = after(&[MADE, NAMED, "7 unlink(\"@/a\") = 0"]);
        assert_eq!(files(&gone, Survival::Everything), []);
        assert_eq!(files(&gone, Survival::Nothing), file("a", ""));
    }

    #[test]
    fn a_write_is_torn_where_sectors_end() {
        let pieces = torn(500, &[1; 600], 512);
        let places: Vec<_> = pieces.iter().map(|(at, piece)| (*at, piece.len())).collect();
        assert_eq!(places, [(500, 12), (512, 512), (1024, 76)]);
    }

    #[test]
    fn a_folder_survives_if_the_one_above_it_was_synced() {
        let made = ["7 mkdir(\"@/outer\", 0700) = 0", "7 mkdir(\"@/outer/data\", 0700) = 0"];
        assert_eq!(files(&after(&made), Survival::Nothing), []);
        assert_eq!(files(&after(&[made[0], NAMED, made[1]]), Survival::Nothing), file("outer", "[]"));
        let synced = [made[0], NAMED, made[1], "7 fsync(5<@/outer>) = 0"];
        assert_eq!(files(&after(&synced), Survival::Nothing), file("outer", "[\"data\"]"));
    }

    #[test]
    fn what_no_start_reads_is_left_empty() {
        let made = "7 openat(AT_FDCWD</>, \"@/a-shm\", O_RDWR|O_CREAT, 0600) = 3<@/a-shm>";
        let disk =
            after(&[made, "7 pwrite64(3<@/a-shm>, \"one\", 3, 0) = 3", "7 fsync(3<@/a-shm>) = 0", NAMED]);
        assert_eq!(files(&disk, Survival::Everything), file("a-shm", ""));
    }

    #[test]
    fn what_is_not_followed_is_an_error() {
        let root = Path::new("/place");
        for call in [
            "7 link(\"/place/a\", \"/place/b\") = 0",
            "7 mmap(0, 9, PROT_READ|PROT_WRITE, MAP_SHARED, 3</place/a>, 0) = 1",
        ] {
            let text = format!("{call}\n");
            let calls = trace::parse(&text, &[root]).expect("a recording");
            Disk::new(root, None).apply(&calls[0]).expect_err(call);
        }
    }
}
