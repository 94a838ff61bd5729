//! Server-sent events: frames to bytes, and bytes, however they are cut, to frames.

use crate::limits::FRAME_BYTES_MAX;

/// One frame of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    /// What sort of frame; none means `message`.
    pub event: Option<String>,
    /// The cursor to resume from.
    pub id: Option<String>,
    /// What it says.
    pub data: String,
}

/// A comment, which keeps proxies from closing a silent stream.
pub const KEEP_ALIVE: &str = ":\n\n";

impl Frame {
    /// The frame as it goes over the wire.
    ///
    /// ```
    /// use solehold_api::sse::{Decoder, Frame};
    ///
    /// let frame = Frame { event: Some("note".into()), id: Some("1.7".into()), data: "two\nlines".into() };
    /// assert_eq!(frame.encode(), "event: note\nid: 1.7\ndata: two\ndata: lines\n\n");
    /// assert_eq!(Decoder::default().push(frame.encode().as_bytes())?, [frame]);
    /// # Ok::<(), solehold_api::sse::FrameTooLarge>(())
    /// ```
    pub fn encode(&self) -> String {
        let one_line = |text: &str| text.replace(['\r', '\n', '\0'], " ");
        let mut wire = String::with_capacity(self.data.len() + 64);
        for (field, value) in [("event", &self.event), ("id", &self.id)] {
            if let Some(value) = value {
                wire.extend([field, ": ", &one_line(value), "\n"]);
            }
        }
        for line in self.data.replace("\r\n", "\n").split(['\n', '\r']) {
            wire.extend(["data: ", line, "\n"]);
        }
        wire.push('\n');
        wire
    }
}

/// A frame is larger than [`FRAME_BYTES_MAX`]; the stream cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of the stream has more than {FRAME_BYTES_MAX} bytes")]
pub struct FrameTooLarge;

/// Reads a stream that comes in pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The line that has begun.
    line: Vec<u8>,
    /// The frame that has begun, and whether it has data, which may be empty.
    frame: Frame,
    has_data: bool,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_return: bool,
    /// A byte order mark may stand before the first line only.
    started: bool,
}

impl Decoder {
    /// Takes in a piece; gives the frames that it completes. What is not UTF-8 is replaced.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<Vec<Frame>, FrameTooLarge> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + self.frame.data.len() + piece.len() > FRAME_BYTES_MAX {
                return Err(FrameTooLarge);
            }
            self.line.extend_from_slice(piece);
            let Some(end) = end else { break };
            self.after_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            frames.extend(self.end_line());
        }
        Ok(frames)
    }

    /// Takes in the line that has ended; gives the frame, if the line was empty and there is one.
    fn end_line(&mut self) -> Option<Frame> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = if std::mem::replace(&mut self.started, true) {
            &*line
        } else {
            line.strip_prefix('\u{feff}').unwrap_or(&line)
        };
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            return std::mem::take(&mut self.has_data).then_some(frame);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.frame.event = Some(value.to_owned()),
            "id" if !value.contains('\0') => self.frame.id = Some(value.to_owned()),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            // A comment has no field; others are for those who know them.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(event: &str, id: &str, data: &str) -> Frame {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Frame { event: given(event), id: given(id), data: data.to_owned() }
    }

    fn decode(pieces: &[&[u8]]) -> Vec<Frame> {
        let mut decoder = Decoder::default();
        pieces.iter().flat_map(|piece| decoder.push(piece).expect("small frames")).collect()
    }

    #[test]
    fn however_a_stream_is_cut_the_frames_are_the_same() {
        let stream = "\u{feff}: hello\r\nevent: event\r\nid: 1.2\r\ndata: {\"söhne\":\r\ndata:  \"数\"}\r\n\r\n\
                      :\n\ndata\n\nevent: progress\rid:1.3\rdata:x\r\rretry: 5\nevent: lost\n\ndata: unfinished\n";
        let stream = stream.as_bytes();
        let expected = [
            frame("event", "1.2", "{\"söhne\":\n \"数\"}"),
            frame("", "", ""),
            frame("progress", "1.3", "x"),
        ];
        assert_eq!(decode(&[stream]), expected);
        for cut in 0..=stream.len() {
            let (a, b) = stream.split_at(cut);
            assert_eq!(decode(&[a, b]), expected, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(decode(&bytes), expected);
    }

    #[test]
    fn frames_come_back_as_they_were_sent() {
        for sent in [
            frame("event", "1.2", r#"{"a": 1}"#),
            frame("", "", ""),
            frame("", "", "\n\n"),
            frame("x", "", "a\n b\n\nc: d\n:"),
            frame("x", "y", &"long ".repeat(10_000)),
        ] {
            assert_eq!(decode(&[sent.encode().as_bytes()]), [sent]);
        }
        let returns = frame("a\nb", "1\r2", "x\r\ny\rz");
        assert_eq!(decode(&[returns.encode().as_bytes()]), [frame("a b", "1 2", "x\ny\nz")]);
        assert_eq!(decode(&[KEEP_ALIVE.as_bytes(), b"data: x\n\n"]), [frame("", "", "x")]);
        assert_eq!(decode(&[b"data: \xff\xfe\n\n"])[0].data, "\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_frame_is_bounded() {
        let mut decoder = Decoder::default();
        let line = format!("data: {}\n", "x".repeat(1024 * 1024));
        let mut pushed = (0..5).map(|_| decoder.push(line.as_bytes()));
        assert!(pushed.any(|pushed| pushed == Err(FrameTooLarge)));
        assert_eq!(Decoder::default().push(&vec![b'x'; FRAME_BYTES_MAX + 1]), Err(FrameTooLarge));
    }
}
