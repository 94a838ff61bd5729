//! The system calls that `strace` has recorded, in the order in which they ended.
//!
//! A call of one thread may be recorded in two lines, with calls of others between them: what it did may have happened
//! at any time between the two, so both are kept.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

/// What `strace` is told to record: everything that changes or syncs files, and mappings, which could change them
/// without a call. A question mark stands before calls that not every machine has.
pub const CALLS: &str = "?open,openat,openat2,?creat,read,readv,lseek,write,writev,pwrite64,pwritev,pwritev2,ftruncate,\
    truncate,fallocate,copy_file_range,sendfile,splice,?rename,renameat,renameat2,?link,linkat,?symlink,symlinkat,\
    ?unlink,unlinkat,?rmdir,?mkdir,mkdirat,mmap,fsync,fdatasync,sync_file_range,syncfs";

/// One call that names a path which is asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    pub arguments: Vec<Argument>,
    /// What it returned, with the path if that is a file; empty if it was cut off by the end of its process.
    pub result: String,
    /// The lines at which it began and ended.
    pub began: usize,
    pub ended: usize,
}

/// What a call was given.
#[derive(Debug, PartialEq, Eq)]
pub enum Argument {
    /// A text, or bytes to write.
    Bytes(Vec<u8>),
    /// Anything else, as it was printed.
    Plain(String),
}

impl Argument {
    fn of(text: &str) -> Self {
        unquoted(text).map_or_else(|_| Self::Plain(text.to_owned()), Self::Bytes)
    }

    /// Whether it has this text in it.
    pub fn contains(&self, text: &str) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.windows(text.len()).any(|part| part == text.as_bytes()),
            Self::Plain(plain) => plain.contains(text),
        }
    }
}

impl Call {
    pub fn argument(&self, number: usize) -> Result<&str> {
        match self.arguments.get(number) {
            Some(Argument::Plain(plain)) => Ok(plain),
            other => bail!("argument {number} of {} is {other:?}", self.name),
        }
    }

    /// An argument that is a number.
    pub fn number(&self, number: usize) -> Result<usize> {
        let text = self.argument(number)?;
        text.parse().with_context(|| format!("argument {number} of {} is {text}", self.name))
    }

    /// An argument that is text or bytes.
    pub fn bytes(&self, number: usize) -> Result<&[u8]> {
        match self.arguments.get(number) {
            Some(Argument::Bytes(bytes)) => Ok(bytes),
            other => bail!("argument {number} of {} is {other:?}", self.name),
        }
    }

    /// An argument that is a path.
    pub fn path(&self, number: usize) -> Result<PathBuf> {
        let text = std::str::from_utf8(self.bytes(number)?).context("a path that is not UTF-8")?;
        Ok(PathBuf::from(text))
    }

    /// An argument that is an open file: its number and its path. None if its name is gone by now.
    pub fn file(&self, number: usize) -> Result<(usize, Option<PathBuf>)> {
        opened(self.argument(number)?)
    }

    /// All bytes of a vector of pieces.
    pub fn pieces(&self, number: usize) -> Result<Vec<u8>> {
        let text = self.argument(number)?.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let mut bytes = Vec::new();
        for piece in split(text.context("a vector of pieces")?) {
            let base = piece.strip_prefix("{iov_base=").and_then(|rest| rest.strip_suffix('}'));
            let (base, _) = base.and_then(|base| base.rsplit_once(", iov_len=")).context("a piece")?;
            bytes.extend(unquoted(base)?);
        }
        Ok(bytes)
    }

    pub fn has_failed(&self) -> bool {
        self.result.starts_with('-')
    }

    /// How many bytes a write has written.
    pub fn count(&self) -> Result<usize> {
        self.result.parse().with_context(|| format!("{} returned {}", self.name, self.result))
    }
}

/// Reads a recording: the calls that name one of these paths, or something below it.
pub fn parse(text: &str, paths: &[&Path]) -> Result<Vec<Call>> {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let mut calls = Vec::new();
    // Calls that have begun, by thread.
    let mut open: HashMap<&str, (String, usize)> = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let (thread, line) = line.split_once(' ').context("a line without a thread")?;
        let line = line.trim_start();
        if let Some(resumed) = line.strip_prefix("<... ") {
            let Some((begin, began)) = open.remove(thread) else { continue };
            let (_, rest) = resumed.split_once(" resumed>").context("a call that is resumed")?;
            calls.push(call(&format!("{begin}{rest}"), began, number)?);
        } else if !paths.iter().any(|path| line.contains(path.as_str())) {
            continue;
        } else if let Some(begin) = line.strip_suffix("<unfinished ...>") {
            open.insert(thread, (begin.to_owned(), number));
        } else {
            calls.push(call(line, number, number)?);
        }
    }
    if let Some((begin, _)) = open.into_values().next() {
        bail!("the process ended during a system call, whose effect is unknown: {begin:.200}");
    }
    Ok(calls)
}

fn call(line: &str, began: usize, ended: usize) -> Result<Call> {
    let odd = || format!("line {ended} of the recording: {line:.200}");
    let (name, rest) = line.split_once('(').with_context(odd)?;
    let (arguments, result) = rest.rsplit_once(") ").with_context(odd)?;
    let result = result.trim_start().strip_prefix("= ").with_context(odd)?;
    let arguments = split(arguments).into_iter().map(Argument::of).collect();
    Ok(Call { name: name.to_owned(), arguments, result: result.to_owned(), began, ended })
}

/// Splits at the commas that are outside of texts and brackets.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut depth = 0;
    let mut in_text = false;
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[begin..].trim());
    parts
}

/// A text between quotes, as C writes it.
fn unquoted(text: &str) -> Result<Vec<u8>> {
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let inner = inner.with_context(|| format!("a text that is not whole: {text:.80}"))?;
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (&kind, after) = rest.split_first().context("a text that ends with a backslash")?;
        let digits = rest.iter().take(3).take_while(|digit| (b'0'..b'8').contains(digit)).count();
        if digits > 0 {
            let value = rest[..digits].iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            bytes.push(u8::try_from(value)?);
            rest = &rest[digits..];
            continue;
        }
        rest = after;
        bytes.push(match kind {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0b,
            b'f' => 0x0c,
            b'"' | b'\\' => kind,
            _ => bail!("an escape that is not known: \\{}", char::from(kind)),
        });
    }
    Ok(bytes)
}

/// A number and a path, as in `5</tmp/file>`.
pub fn opened(text: &str) -> Result<(usize, Option<PathBuf>)> {
    let (number, path) = text.split_once('<').with_context(|| format!("not an open file: {text}"))?;
    let number = number.parse().with_context(|| format!("not an open file: {text}"))?;
    if path.ends_with("(deleted)") {
        return Ok((number, None));
    }
    let path = path.strip_suffix('>').with_context(|| format!("not an open file: {text}"))?;
    ensure!(!path.contains(['\\', '<', '>']), "a path that cannot be read: {path}");
    Ok((number, Some(PathBuf::from(path))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<Call> {
        parse(text, &[Path::new("/d")]).expect("a recording")
    }

    #[test]
    fn calls_are_read_as_they_were_made() {
        let text = concat!(
            "12 openat(AT_FDCWD</>, \"/d/a, b\", O_RDWR|O_CREAT, 0644) = 3</d/a, b>\n",
            "12  pwrite64(3</d/a>, \"a\\0\\1771\\\"\\\\\\n, (\", 9, 4096) = 9\n",
            "12 pwritev(3</d/a>, [{iov_base=\"x,\", iov_len=2}, {iov_base=\"y}\", iov_len=2}], 2, 7) = 4\n",
            "12 fsync(4</elsewhere>)      = 0\n",
            "12 fsync(4</d>)      = -1 EIO (Input/output error)\n",
            "12 +++ killed by SIGKILL +++\n",
        );
        let calls = parsed(text);
        let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(names, ["openat", "pwrite64", "pwritev", "fsync"]);
        assert_eq!(calls[0].path(1).expect("a path"), Path::new("/d/a, b"));
        assert_eq!(opened(&calls[0].result).expect("a file"), (3, Some("/d/a, b".into())));
        assert_eq!(calls[1].file(0).expect("a file"), (3, Some("/d/a".into())));
        assert_eq!(calls[1].bytes(1).expect("bytes"), b"a\0\x7f1\"\\\n, (");
        assert_eq!((calls[1].number(3).expect("a number"), calls[1].count().expect("a count")), (4096, 9));
        assert_eq!(calls[2].pieces(1).expect("pieces"), b"x,y}");
        assert!(calls[3].has_failed() && !calls[2].has_failed());
    }

    #[test]
    fn a_call_that_was_interrupted_by_others_began_before_them() {
        let text = concat!(
            "12 fdatasync(3</d/a> <unfinished ...>\n",
            "13 pwrite64(5</d/b>, \"b\", 1, 0) = 1\n",
            "14 <... futex resumed>) = 0\n",
            "12 <... fdatasync resumed>) = 0\n",
        );
        let places: Vec<_> =
            parsed(text).iter().map(|call| (call.name.clone(), call.began, call.ended)).collect();
        assert_eq!(places, [("pwrite64".to_owned(), 1, 1), ("fdatasync".to_owned(), 0, 3)]);
    }

    #[test]
    fn what_was_cut_off_is_an_error() {
        let read = |text: &str| parse(text, &[Path::new("/d")]);
        read("12 fsync(3</d/a> <unfinished ...>\n12 +++ killed by SIGKILL +++\n").expect_err("no end");
        let calls = read("12 write(3</d/a>, \"abc\"..., 9) = 9\n").expect("a call");
        calls[0].bytes(1).expect_err("not all bytes");
        assert_eq!(opened("3</d/a>(deleted)").expect("a file"), (3, None));
    }
}
