//! A program on a terminal of its own, as `script` of util-linux makes one, and what is on its screen.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::SOON;

const ROWS: usize = 30;
const COLUMNS: usize = 110;

pub struct Terminal {
    script: Child,
    keys: ChildStdin,
    output: ChildStdout,
    screen: Screen,
}

impl Terminal {
    /// Runs a command line of a shell; `environment` is added to that of this process.
    pub fn start(line: &str, environment: &[(&str, &str)]) -> Result<Self> {
        let shell = format!("stty rows {ROWS} cols {COLUMNS}; exec {line}");
        let mut script = Command::new("script");
        script.args(["-qefc", &shell, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        script.env("TERM", "xterm-256color").envs(environment.iter().copied());
        let mut script = script.kill_on_drop(true).spawn().context("`script` of util-linux")?;
        let keys = script.stdin.take().context("stdin")?;
        let output = script.stdout.take().context("stdout")?;
        Ok(Self { script, keys, output, screen: Screen::default() })
    }

    pub async fn press(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes()).await?;
        Ok(self.keys.flush().await?)
    }

    /// Waits until the screen is as it should be.
    pub async fn shows(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> Result<()> {
        let wait = async {
            let mut piece = [0; 4096];
            while !is_it(&self.screen.text()) {
                match self.output.read(&mut piece).await? {
                    0 => bail!("it ended before"),
                    count => self.screen.take(&piece[..count]),
                }
            }
            Ok(())
        };
        let waited = tokio::time::timeout(SOON, wait).await.context("waited in vain").flatten();
        waited.with_context(|| format!("{what}; on the screen is\n{}", self.screen.text()))
    }

    /// Waits until the program has ended, and gives its code.
    pub async fn ended(mut self) -> Result<Option<i32>> {
        let mut rest = Vec::new();
        let wait = async {
            self.output.read_to_end(&mut rest).await?;
            self.script.wait().await
        };
        Ok(tokio::time::timeout(SOON, wait).await.context("it does not end")??.code())
    }
}

/// As much of a terminal as the views need: a grid, the cursor, and clearing.
struct Screen {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// What has come of an escape sequence, or of a character.
    pending: Vec<u8>,
}

impl Default for Screen {
    fn default() -> Self {
        Self { cells: vec![vec![' '; COLUMNS]; ROWS], row: 0, column: 0, pending: Vec::new() }
    }
}

impl Screen {
    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.pending.push(*byte);
            match self.pending.as_slice() {
                [0x1b] | [0x1b, b'[' | b'('] => {}
                [0x1b, b'[', parameters @ .., last] if last.is_ascii_alphabetic() => {
                    let parameters = String::from_utf8_lossy(parameters).into_owned();
                    self.control(&parameters, *last);
                    self.pending.clear();
                }
                [0x1b, b'[', ..] => {}
                [0x1b, ..] => self.pending.clear(),
                whole => {
                    let Some(c) = std::str::from_utf8(whole).ok().and_then(|text| text.chars().next()) else {
                        continue;
                    };
                    self.pending.clear();
                    self.put(c);
                }
            }
        }
    }

    fn control(&mut self, parameters: &str, last: u8) {
        let mut numbers = parameters.split(';').map(|number| number.parse::<usize>().unwrap_or(1));
        match last {
            b'H' => {
                self.row = numbers.next().unwrap_or(1).saturating_sub(1);
                self.column = numbers.next().unwrap_or(1).saturating_sub(1);
            }
            // The screen of a program that fills it is another one, and empty.
            b'h' | b'l' if parameters == "?1049" => self.cells = vec![vec![' '; COLUMNS]; ROWS],
            b'J' => self.cells = vec![vec![' '; COLUMNS]; ROWS],
            _ => {}
        }
    }

    fn put(&mut self, c: char) {
        match c {
            '\r' => self.column = 0,
            '\n' => self.row += 1,
            c => {
                if let Some(cell) = self.cells.get_mut(self.row).and_then(|row| row.get_mut(self.column)) {
                    *cell = c;
                }
                self.column += 1;
            }
        }
    }

    fn text(&self) -> String {
        let line = |row: &Vec<char>| format!("{}\n", row.iter().collect::<String>().trim_end());
        self.cells.iter().map(line).collect()
    }
}
