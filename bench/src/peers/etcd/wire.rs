//! The few messages of etcd's gRPC interface that are needed here, in the wire format of Protocol Buffers.

use anyhow::{Context, Result, bail, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};

/// The length of what precedes each message of gRPC: a flag (not compressed), and the length of the message.
const PREFIX: usize = 5;

/// A message as it is built: each field with its number, in order.
#[derive(Default)]
pub struct Fields(BytesMut);

impl Fields {
    /// A number; signed ones that are negative are not needed.
    pub fn number(mut self, field: u8, value: u64) -> Self {
        self.0.put_u8(field << 3);
        self.varint(value);
        self
    }

    /// Bytes, or a message within this one.
    pub fn bytes(mut self, field: u8, value: &[u8]) -> Self {
        self.0.put_u8(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.put_slice(value);
        self
    }

    /// A message within this one.
    pub fn message(self, field: u8, value: Self) -> Self {
        self.bytes(field, &value.0)
    }

    /// The whole message behind gRPC's prefix.
    pub fn framed(self) -> Bytes {
        let mut framed = BytesMut::with_capacity(PREFIX + self.0.len());
        framed.put_u8(0);
        framed.put_u32(self.0.len() as u32);
        framed.put(self.0);
        framed.freeze()
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.put_u8(value as u8);
    }
}

/// Takes the next whole message, without its prefix, off the front of what was received.
pub fn next_message(received: &mut BytesMut) -> Result<Option<Bytes>> {
    let Some(prefix) = received.first_chunk::<PREFIX>() else { return Ok(None) };
    let [compressed, length @ ..] = *prefix;
    ensure!(compressed == 0, "etcd sent a compressed message");
    let length = u32::from_be_bytes(length) as usize;
    if received.len() < PREFIX + length {
        return Ok(None);
    }
    let mut message = received.split_to(PREFIX + length).freeze();
    Ok(Some(message.split_off(PREFIX)))
}

/// The value of a numeric field; 0 if it is not there, as the format has it.
pub fn number(message: &[u8], wanted: u64) -> Result<u64> {
    values(message).try_fold(0, |found, value| match value? {
        (field, Value::Number(value)) if field == wanted => Ok(value),
        _ => Ok(found),
    })
}

/// The last value of a field that has bytes, or a message.
pub fn bytes(message: &[u8], wanted: u64) -> Result<Option<Bytes>> {
    let last = fields(message, wanted).last().transpose()?;
    Ok(last.map(Bytes::copy_from_slice))
}

/// All values of a field that has bytes, or messages.
pub fn fields(message: &[u8], wanted: u64) -> impl Iterator<Item = Result<&[u8]>> {
    values(message).filter_map(move |value| match value {
        Ok((field, Value::Bytes(value))) if field == wanted => Some(Ok(value)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The values of a message with the numbers of their fields, until one cannot be read.
fn values(message: &[u8]) -> impl Iterator<Item = Result<(u64, Value<'_>)>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        (!rest.is_empty()).then(|| {
            let value = value(&mut rest);
            if value.is_err() {
                rest = &[];
            }
            value
        })
    })
}

fn value<'a>(rest: &mut &'a [u8]) -> Result<(u64, Value<'a>)> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Value::Number(varint(rest)?),
        2 => {
            let length = varint(rest)? as usize;
            let (value, after) = rest.split_at_checked(length).context("a message of etcd is cut off")?;
            *rest = after;
            Value::Bytes(value)
        }
        other => bail!("a message of etcd has a field of type {other}"),
    };
    Ok((tag >> 3, value))
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().context("a message of etcd is cut off")?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    bail!("a number of etcd has more than 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let inner = Fields::default().number(1, 7);
        let written = Fields::default().message(1, inner).number(2, 300).bytes(3, b"key").number(4, u64::MAX);
        let mut received = BytesMut::from(&written.framed()[..]);
        received.put_slice(&[0, 0]);
        let message = next_message(&mut received).expect("good").expect("whole");
        assert_eq!(&received[..], [0, 0], "the next one has only begun");
        assert_eq!(next_message(&mut received).expect("good"), None);
        for (field, value) in [(2, 300), (4, u64::MAX), (5, 0)] {
            assert_eq!(number(&message, field).expect("good"), value, "field {field}");
        }
        assert_eq!(bytes(&message, 3).expect("good").as_deref(), Some(&b"key"[..]));
        assert_eq!(bytes(&message, 4).expect("good"), None);
        assert_eq!(fields(&message, 1).count(), 1);
        assert!(number(&message[..message.len() - 1], 2).is_err(), "cut off");
    }

    #[test]
    fn numbers_are_as_the_format_has_them() {
        let framed = Fields::default().number(1, 150).framed();
        assert_eq!(&framed[..], [0, 0, 0, 0, 3, 0x08, 0x96, 0x01]);
    }
}
