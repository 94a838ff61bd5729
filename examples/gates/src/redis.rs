//! Redis: a Lua script compares the token, raises the mark and writes, in one step that nothing comes between.
//!
//! The connection is the least that is needed to run the recipe; a service uses its own client and `EVALSHA`.

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// The recipe.
pub const SCRIPT: &str = include_str!("../redis.lua");
/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// What Redis answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// Nothing.
    Nil,
    /// Several.
    Many(Vec<Reply>),
}

/// A connection.
#[derive(Debug)]
pub struct Redis(BufReader<TcpStream>);

impl Redis {
    /// Connects to `HOST:PORT`.
    pub async fn connect(address: &str) -> Result<Self> {
        Ok(Self(BufReader::new(TcpStream::connect(address).await.context("Redis")?)))
    }

    /// Writes a value under a token. Gives the newest token instead if that is above it.
    pub async fn write_fenced(&mut self, key: &str, token: u64, value: &str) -> Result<Option<u64>> {
        let mark = format!("{key}:mark");
        let token = token.to_string();
        match self.ask(&["EVAL", SCRIPT, "2", key, &mark, &token, value]).await? {
            Reply::Many(parts) => match parts.as_slice() {
                [Reply::Number(1), _] => Ok(None),
                [Reply::Number(0), Reply::Number(newest)] => Ok(Some(newest.unsigned_abs())),
                odd => bail!("the script gave {odd:?}"),
            },
            odd => bail!("the script gave {odd:?}"),
        }
    }

    /// Sends a command, and reads its answer.
    pub async fn ask(&mut self, words: &[&str]) -> Result<Reply> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.write_all(command.as_bytes()).await?;
        self.reply().await
    }

    async fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        let (kind, rest) = line.trim_end().split_at_checked(1).context("Redis hung up")?;
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => bail!("Redis: {rest}"),
            ":" => Reply::Number(rest.parse()?),
            "$" if rest == "-1" => Reply::Nil,
            "$" => {
                let length: usize = rest.parse()?;
                anyhow::ensure!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes");
                let mut text = vec![0; length + 2];
                self.0.read_exact(&mut text).await?;
                text.truncate(length);
                Reply::Text(String::from_utf8(text)?)
            }
            "*" => {
                let mut parts = Vec::new();
                for _ in 0..rest.parse::<usize>()?.min(ANSWER_BYTES_MAX) {
                    parts.push(Box::pin(self.reply()).await?);
                }
                Reply::Many(parts)
            }
            odd => bail!("Redis answered {odd:?}"),
        })
    }
}
