//! A client's end of one HTTP/2 connection, for gRPC calls: as much of it as a load needs.
//!
//! Header fields that are the same in all calls go into the server's table with the first call, as
//! the official clients' libraries do it; each call has two that differ. Answers' header blocks are
//! skipped: they are complete frames, and what an answer says is in its messages.
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::SocketAddr;

use crate::stream::Stream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD_BYTES: usize = 9;
const WINDOW: u32 = 0x7fff_ffff;
const DEFAULT_WINDOW: i64 = 65_535;
/// The first place behind HPACK's static table.
const FIRST_OWN: usize = 62;
/// Read by us before the server's window is opened again.
const READ_MAX: u32 = 1 << 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

pub struct Http2 {
    stream: Stream,
    authority: String,
    client_id: String,
    /// Values of the fields in the server's table, the oldest first; no two names have the same.
    known: Vec<String>,
    out: Vec<u8>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    next_id: u32,
    window: i64,
    read: u32,
    calls: u64,
}

/// What a frame brought: data of a call, and whether the call is over.
pub struct Piece {
    pub id: u32,
    pub data: Vec<u8>,
    pub ends: bool,
}

impl Http2 {
    /// Connects; the buffer for what comes begins with that size.
    pub fn open(address: SocketAddr, client_id: String, buffer_bytes: usize) -> Result<Http2> {
        let mut http2 = Http2 {
            stream: Stream::open(address, None)?,
            authority: address.to_string(),
            client_id,
            known: Vec::new(),
            out: PREFACE.to_vec(),
            buffer: vec![0; buffer_bytes],
            start: 0,
            end: 0,
            next_id: 1,
            window: DEFAULT_WINDOW,
            read: 0,
            calls: 0,
        };
        let mut settings = Vec::new();
        for (key, value) in [(2_u16, 0), (4, WINDOW)] {
            settings.extend_from_slice(&key.to_be_bytes());
            settings.extend_from_slice(&value.to_be_bytes());
        }
        http2.frame(SETTINGS, 0, 0, &settings);
        http2.open_window(WINDOW - DEFAULT_WINDOW as u32);
        http2.flush()?;
        Ok(http2)
    }

    /// Begins a call with one message; it leaves with `flush`. Gives its number.
    pub fn call(&mut self, path: &'static str, message: &[u8], ends: bool) -> Result<u32> {
        let id = self.next_id;
        self.next_id += 2;
        let block = self.block(path);
        self.frame(HEADERS, END_HEADERS, id, &block);
        let mut data = vec![0];
        data.extend_from_slice(&(message.len() as u32).to_be_bytes());
        data.extend_from_slice(message);
        while self.window < data.len() as i64 {
            self.flush()?;
            if self.piece()?.is_some() {
                return Err(invalid("an answer while the window is closed"));
            }
        }
        self.window -= data.len() as i64;
        self.frame(DATA, if ends { END_STREAM } else { 0 }, id, &data);
        Ok(id)
    }

    pub fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        self.stream.flush()
    }

    /// Waits for the next frame; None if it belongs to no call.
    pub fn piece(&mut self) -> Result<Option<Piece>> {
        let length = loop {
            let bytes = &self.buffer[self.start..self.end];
            if bytes.len() >= HEAD_BYTES {
                let length = HEAD_BYTES
                    + (usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8)
                    + usize::from(bytes[2]);
                if bytes.len() >= length {
                    break length;
                }
            }
            self.fill()?;
        };
        let frame = self.buffer[self.start..self.start + length].to_vec();
        self.start += length;
        let (kind, flags) = (frame[3], frame[4]);
        let id = u32::from_be_bytes([frame[5] & 0x7f, frame[6], frame[7], frame[8]]);
        let payload = &frame[HEAD_BYTES..];
        let ends = flags & END_STREAM != 0;
        match kind {
            DATA => {
                self.read += payload.len() as u32;
                if self.read > READ_MAX {
                    self.open_window(self.read);
                    self.read = 0;
                    self.flush()?;
                }
                return Ok(Some(Piece { id, data: payload.to_vec(), ends }));
            }
            HEADERS => return Ok(Some(Piece { id, data: Vec::new(), ends })),
            SETTINGS if flags & ACK == 0 => {
                self.frame(SETTINGS, ACK, 0, &[]);
                self.flush()?;
            }
            PING if flags & ACK == 0 => {
                self.frame(PING, ACK, 0, payload);
                self.flush()?;
            }
            WINDOW_UPDATE if id == 0 => {
                let more = [payload[0] & 0x7f, payload[1], payload[2], payload[3]];
                self.window += i64::from(u32::from_be_bytes(more));
            }
            RESET => return Err(invalid("the server reset a call")),
            GOAWAY => return Err(invalid("the server says goodbye")),
            _ => (),
        }
        Ok(None)
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

    fn open_window(&mut self, more: u32) {
        self.frame(WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
    }

    fn frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        self.out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        self.out.extend_from_slice(&[kind, flags]);
        self.out.extend_from_slice(&id.to_be_bytes());
        self.out.extend_from_slice(payload);
    }

    /// The header block of a call: fields that are in the server's table or get into it, and those
    /// that differ in each call.
    fn block(&mut self, path: &'static str) -> Vec<u8> {
        let mut block = vec![0x83, 0x86]; // POST, http
        let authority = self.authority.clone();
        let client_id = self.client_id.clone();
        let fields = [
            (":path", path),
            (":authority", &authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "grpc-java-netty/1.56.0"),
            ("x-mq-protocol", "v2"),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
            ("x-mq-client-id", &client_id),
            ("grpc-timeout", "30S"),
        ];
        for (name, value) in fields {
            match self.known.iter().position(|known| known == value) {
                // Positions are counted from the newest field.
                Some(at) => block.push(0x80 | (FIRST_OWN + self.known.len() - 1 - at) as u8),
                None => {
                    block.push(0x40);
                    text(&mut block, name);
                    text(&mut block, value);
                    self.known.push(value.into());
                }
            }
        }
        self.calls += 1;
        literal(&mut block, "x-mq-date-time", "20261129T120000Z");
        let id = format!("7f3b2c0a-2c52-4f9c-8dbe-{:012x}", self.calls);
        literal(&mut block, "x-mq-request-id", &id);
        block
    }
}

fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    text(block, name);
    text(block, value);
}

fn text(block: &mut Vec<u8>, value: &str) {
    assert!(value.len() < 127, "a length of one byte");
    block.push(value.len() as u8);
    block.extend_from_slice(value.as_bytes());
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}
