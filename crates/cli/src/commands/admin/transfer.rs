//! `solehold admin export` and `import`: everything as JSON lines, and in again.
//!
//! The output of an export matters to its last line: a reader that goes away is an error here, unlike everywhere else.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, IsTerminal, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use futures_util::stream;
use solehold_api::{
    admin::{ImportSummary, RetireStore},
    limits::EXPORT_LINE_BYTES_MAX,
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_engine::{
    EngineError,
    embedded::sync_names,
    store::{Import, ImportReader, Row, StoreError},
};
use solehold_server::Operator;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use super::Door;
use crate::{
    client::{Body, Method, ServerArgs},
    error::{CommandError, CommandResult, Doing},
    global::GlobalArgs,
    human::count,
    output,
    progress::Progress,
    store::{IfMissing, StoreChoice},
};

const PIECE_BYTES: usize = 256 * 1024;

/// Exports to a file or stdout, after retiring the store if requested.
pub async fn export(
    path: Option<&Path>,
    retire: Option<String>,
    door: &Door,
    global: &GlobalArgs,
) -> CommandResult {
    let mut sink = Sink::open(path, global)?;
    if let Some(to) = retire {
        match door {
            Door::Server(client) => {
                client.send(Method::POST, &paths::retire(), &RetireStore { to: to.clone() }).await
            }
            Door::Store(engine) => Operator::from(engine).retire(&to).await.map_err(CommandError::from),
        }
        .doing("retire the store")?;
        output::note(
            "the store is retired and refuses everything but exports; `solehold admin restored` takes it up again",
        );
    }
    match door {
        Door::Server(client) => {
            let broke_off = || {
                CommandError::new(
                    ErrorCode::Unavailable,
                    format!("the export from {} broke off", client.base()),
                )
            };
            let mut stream = client.stream(&paths::export(), &[]).await.doing("export")?;
            let mut lines = LastLine::default();
            while let Some(piece) = stream.next().await.map_err(|_| broke_off())? {
                lines.take(&piece);
                sink.write(&piece)?;
            }
            if !matches!(serde_json::from_slice(&lines.last), Ok(Row::End { .. })) {
                return Err(broke_off());
            }
        }
        Door::Store(engine) => {
            let mut pieces = engine.export()?;
            while let Some(rows) = pieces.next().await {
                for row in rows.map_err(EngineError::from)? {
                    let mut line =
                        serde_json::to_vec(&row).map_err(|error| CommandError::broken(error.to_string()))?;
                    line.push(b'\n');
                    sink.write(&line)?;
                }
            }
        }
    }
    let rows = sink.finish()?.saturating_sub(2);
    output::note(format!("exported {}", count(usize::try_from(rows).unwrap_or(usize::MAX), "row")));
    Ok(())
}

/// The last complete line, which shows whether the export is complete.
#[derive(Default)]
struct LastLine {
    begun: Vec<u8>,
    last: Vec<u8>,
}

impl LastLine {
    fn take(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                std::mem::swap(&mut self.begun, &mut self.last);
                self.begun.clear();
            }
        }
    }
}

/// Imports from a file or stdin. If that fails, a store that did not exist before is removed again.
pub async fn import(
    path: &Path,
    store: Option<&StoreChoice>,
    server: &ServerArgs,
    global: &GlobalArgs,
) -> CommandResult {
    let (source, bytes) = open_source(path).await?;
    let imported = match store {
        None => match Door::open(None, IfMissing::Refuse, server).await? {
            Door::Server(client) => {
                let progress = Progress::new("sent", bytes, global);
                client.upload(&paths::import(), body(source, progress)).await
            }
            Door::Store(_) => Err(CommandError::broken("no store was named")),
        },
        Some(store) => import_rows(source, Progress::new("read", bytes, global), store, server).await,
    };
    let imported: ImportSummary = imported.doing("import")?;
    output::show(global, &imported, || {
        let rows = count(usize::try_from(imported.rows).unwrap_or(usize::MAX), "row");
        let when = super::from_when(imported.barred_ms);
        format!("imported {rows}; tokens go on from above {}; {when}", imported.revision)
    })
}

/// The input, and how many bytes it has, where that is known.
async fn open_source(path: &Path) -> CommandResult<(Box<dyn AsyncRead + Send + Unpin>, Option<u64>)> {
    if path == Path::new("-") {
        if io::stdin().is_terminal() {
            output::note("reading the export from the terminal; Ctrl-D ends it");
        }
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        let stdin = stdin.map_err(|error| CommandError::broken(format!("cannot read stdin: {error}")))?;
        let file = tokio::fs::File::from_std(stdin.into());
        let bytes = bytes_of(&file).await;
        return Ok((Box::new(file), bytes));
    }
    let file = tokio::fs::File::open(path).await;
    let file =
        file.map_err(|error| CommandError::usage(format!("cannot read {}: {error}", path.display())))?;
    let bytes = bytes_of(&file).await;
    Ok((Box::new(file), bytes))
}

async fn bytes_of(file: &tokio::fs::File) -> Option<u64> {
    file.metadata().await.ok().filter(fs::Metadata::is_file).map(|file| file.len())
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

async fn import_rows(
    source: impl AsyncRead + Unpin,
    progress: Progress,
    store: &StoreChoice,
    server: &ServerArgs,
) -> CommandResult<ImportSummary> {
    // Found whole before there is a store, and told as what it is: a bad export, not a bad store.
    let import = read_rows(source, progress).await?;
    let rows = import.rows;
    let before = match store {
        StoreChoice::Folder(path) => Some(FolderBefore::of(path)),
        StoreChoice::Url(_) => None,
    };
    let begins = async {
        let door = Door::open(Some(store), IfMissing::Create, server).await?;
        let begins = match &door {
            Door::Store(engine) => Operator::from(engine).import(import).await.map_err(CommandError::from),
            Door::Server(_) => Err(CommandError::broken("a store was named")),
        };
        door.close().await;
        begins
    };
    match begins.await {
        Ok(begins) => {
            Ok(ImportSummary { rows, revision: begins.cursor.revision.0, barred_ms: begins.barred_ms })
        }
        Err(failure) => {
            if let Some(before) = before {
                before.restore();
            }
            Err(failure)
        }
    }
}

/// A folder before a store was made in it.
struct FolderBefore {
    path: PathBuf,
    entries: BTreeSet<OsString>,
    /// The folders that were not there, innermost first.
    missing: Vec<PathBuf>,
}

impl FolderBefore {
    fn of(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let missing = path.ancestors().take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        Self { entries: entries(&path), missing, path }
    }

    /// Removes what has been added, unless it was a store before.
    fn restore(self) {
        for name in entries(&self.path).difference(&self.entries) {
            let _ = fs::remove_file(self.path.join(name));
        }
        for folder in self.missing {
            // One that is not empty stays: someone else is there.
            let _ = fs::remove_dir(folder);
        }
    }
}

fn entries(folder: &Path) -> BTreeSet<OsString> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

async fn read_rows(source: impl AsyncRead + Unpin, mut progress: Progress) -> CommandResult<Import> {
    let mut source = BufReader::with_capacity(PIECE_BYTES, source);
    let bad = |error: StoreError| CommandError::usage(error.to_string());
    let mut rows = ImportReader::default();
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let bound = EXPORT_LINE_BYTES_MAX as u64 + 1;
        let read = (&mut source).take(bound).read_until(b'\n', &mut line).await;
        let read =
            read.map_err(|error| CommandError::broken(format!("cannot read line {number}: {error}")))?;
        if read == 0 {
            break;
        }
        progress.add(1, read as u64);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let odd = |error| CommandError::usage(format!("line {number} is not one of an export: {error}"));
        rows.take(serde_json::from_slice(&line).map_err(odd)?).map_err(bad)?;
    }
    rows.finish().map_err(bad)
}

/// The input as the body of a request.
fn body(source: impl AsyncRead + Send + Unpin + 'static, progress: Progress) -> Body {
    let pieces = stream::unfold((source, progress), async |(mut source, mut progress)| {
        let mut piece = vec![0; PIECE_BYTES];
        let read = match source.read(&mut piece).await {
            Ok(0) => return None,
            Ok(read) => read,
            Err(error) => return Some((Err(error), (source, progress))),
        };
        piece.truncate(read);
        progress.add(lines(&piece), read as u64);
        Some((Ok::<_, io::Error>(piece), (source, progress)))
    });
    Body::wrap_stream(pieces)
}

struct Sink {
    out: BufWriter<Box<dyn Write>>,
    /// The file's name until it is complete, and then.
    names: Option<(PathBuf, PathBuf)>,
    progress: Progress,
}

impl Sink {
    fn open(path: Option<&Path>, global: &GlobalArgs) -> CommandResult<Self> {
        let progress = Progress::new("exported", None, global);
        let Some(path) = path else {
            return Ok(Self { out: BufWriter::new(Box::new(io::stdout())), names: None, progress });
        };
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        // It bears the hashes of keys, and what holders left for one another.
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial);
        let file = file
            .map_err(|error| CommandError::usage(format!("cannot write {}: {error}", partial.display())))?;
        let names = Some((partial, path.to_owned()));
        Ok(Self { out: BufWriter::new(Box::new(file)), names, progress })
    }

    fn write(&mut self, bytes: &[u8]) -> CommandResult {
        self.out.write_all(bytes).map_err(cut_off)?;
        self.progress.add(lines(bytes), 0);
        Ok(())
    }

    /// Completes the file, which then survives a power loss, and returns the number of lines.
    fn finish(mut self) -> CommandResult<u64> {
        self.out.flush().map_err(cut_off)?;
        if let Some((partial, path)) = self.names {
            let kept = File::open(&partial).and_then(|file| file.sync_all());
            let kept = kept.and_then(|()| fs::rename(&partial, &path));
            let kept = kept.and_then(|()| path.parent().map_or(Ok(()), sync_names));
            kept.map_err(|error| CommandError::broken(format!("cannot write {}: {error}", path.display())))?;
        }
        Ok(self.progress.rows())
    }
}

fn cut_off(error: io::Error) -> CommandError {
    Problem::new(ErrorCode::Internal, format!("the export was cut off: {error}")).into()
}
