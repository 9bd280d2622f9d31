//! One socket and the answers that come over it.
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::SocketAddr;
use std::path::Path;

use crate::frames::find;
use crate::stream::Stream;

const BUFFER_BYTES: usize = 256 << 10;
/// Larger answers are an error: no request here can be answered with as much.
const FRAME_BYTES_MAX: usize = 64 << 20;

pub struct Connection {
    stream: Stream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// An answer, as far as a load generator needs to know it; valid until the next one is read.
pub struct Answer<'a> {
    pub code: i64,
    pub opaque: u64,
    pub header: &'a [u8],
    pub body: &'a [u8],
}

impl Connection {
    pub fn open(address: SocketAddr, trusted: Option<&Path>) -> Result<Connection> {
        let stream = Stream::open(address, trusted)?;
        Ok(Connection { stream, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0 })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Waits for the next whole frame.
    pub fn answer(&mut self) -> Result<Answer<'_>> {
        let length = loop {
            match self.whole_frame()? {
                Some(length) => break length,
                None => self.fill()?,
            }
        };
        let frame = &self.buffer[self.start..self.start + length];
        self.start += length;
        Answer::parse(frame)
    }

    fn whole_frame(&self) -> Result<Option<usize>> {
        let bytes = &self.buffer[self.start..self.end];
        if bytes.len() < 8 {
            return Ok(None);
        }
        let length = 4 + word(bytes, 0);
        if !(8..=FRAME_BYTES_MAX).contains(&length) {
            return Err(invalid("an answer of an impossible length"));
        }
        Ok((bytes.len() >= length).then_some(length))
    }

    fn fill(&mut self) -> Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        match self.stream.read(&mut self.buffer[self.end..])? {
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }
}

impl Answer<'_> {
    fn parse(frame: &[u8]) -> Result<Answer<'_>> {
        let (form, length) = (frame[4], word(frame, 4) & 0xff_ffff);
        if form != 0 || 8 + length > frame.len() {
            return Err(invalid("an answer without a JSON header"));
        }
        let (header, body) = frame[8..].split_at(length);
        let code =
            integer(header, b"\"code\":").ok_or_else(|| invalid("an answer without code"))?;
        let opaque =
            integer(header, b"\"opaque\":").ok_or_else(|| invalid("an answer without opaque"))?;
        Ok(Answer { code, opaque: opaque as u64, header, body })
    }

    /// A number of the header, given as a JSON number or, as in extFields, as a string.
    pub fn field(&self, marker: &[u8]) -> Option<u64> {
        integer(self.header, marker).map(|value| value as u64)
    }

    /// A text of the header, up to its next quotation mark.
    pub fn text(&self, marker: &[u8]) -> Option<&str> {
        let rest = &self.header[find(self.header, marker)? + marker.len()..];
        let end = rest.iter().position(|byte| *byte == b'"')?;
        std::str::from_utf8(&rest[..end]).ok()
    }

    /// How many records the body holds; None if they do not fill it exactly.
    pub fn records(&self) -> Option<u64> {
        let mut count = 0;
        self.each_record(|_| count += 1).then_some(count)
    }

    /// Shows each record of the body; false if they do not fill it exactly.
    pub fn each_record(&self, mut look: impl FnMut(&[u8])) -> bool {
        let mut at = 0;
        while at + 4 <= self.body.len() {
            let size = word(self.body, at);
            if size < 4 || at + size > self.body.len() {
                return false;
            }
            look(&self.body[at..at + size]);
            at += size;
        }
        at == self.body.len()
    }

    /// The physical offset in an answer to a send: the second half of the id that it gives.
    pub fn physical_offset(&self) -> Option<u64> {
        let marker = b"\"msgId\":\"";
        let at = find(self.header, marker)? + marker.len();
        let digits = std::str::from_utf8(self.header.get(at + 16..at + 32)?).ok()?;
        u64::from_str_radix(digits, 16).ok()
    }
}

/// Where a stored record is in its log.
pub fn place_of(record: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(record.get(28..36)?.try_into().ok()?))
}

pub fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

fn integer(header: &[u8], marker: &[u8]) -> Option<i64> {
    let rest = &header[find(header, marker)? + marker.len()..];
    let rest = &rest[rest.iter().position(|byte| !b" \"".contains(byte))?..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'-').count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: &[u8], body: &[u8]) -> Vec<u8> {
        let mut bytes = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(&(header.len() as u32).to_be_bytes());
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn reads_code_opaque_and_fields() {
        let header = br#"{"code":0,"extFields":{"nextBeginOffset":"64"},"opaque": 12}"#;
        let bytes = frame(header, &[0, 0, 0, 5, 1, 0, 0, 0, 4]);
        let answer = Answer::parse(&bytes).unwrap();
        assert_eq!((answer.code, answer.opaque, answer.records()), (0, 12, Some(2)));
        assert_eq!(answer.field(b"\"nextBeginOffset\":"), Some(64));
    }

    #[test]
    fn reads_places() {
        let header =
            br#"{"code":0,"extFields":{"msgId":"7F00000100002A9F000000000000012C"},"opaque":1}"#;
        assert_eq!(Answer::parse(&frame(header, &[])).unwrap().physical_offset(), Some(300));
        let mut record = vec![0; 40];
        record[34..36].copy_from_slice(&[1, 44]);
        assert_eq!((place_of(&record), place_of(&[0; 30])), (Some(300), None));
    }

    #[test]
    fn sees_torn_bodies_and_foreign_headers() {
        let bytes = frame(br#"{"code":0,"opaque":1}"#, &[0, 0, 0, 9, 1]);
        assert_eq!(Answer::parse(&bytes).unwrap().records(), None);
        let mut binary = frame(br#"{"code":0,"opaque":1}"#, &[]);
        binary[4] = 1;
        assert!(Answer::parse(&binary).is_err());
    }
}
