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
/// HTTP/2's error codes, from 0 on.
const ERRORS: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// A method of a service, and the time that a client gives its calls, as gRPC writes it.
#[derive(PartialEq, Eq)]
pub struct Method {
    pub path: &'static str,
    pub timeout: &'static str,
}

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
    /// Pending calls, with their methods.
    open: Vec<(u32, &'static Method)>,
}

/// What a frame brought: data of a pending call, or its end.
pub struct Piece {
    pub id: u32,
    pub method: &'static Method,
    pub data: Vec<u8>,
    pub end: Option<End>,
}

/// End of a call.
pub enum End {
    /// All of the answer came.
    Answered,
    /// The server gave the call up, with an error code.
    Reset(u32),
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
            open: Vec::new(),
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
    pub fn call(&mut self, method: &'static Method, message: &[u8], ends: bool) -> Result<u32> {
        let id = self.next_id;
        self.next_id += 2;
        self.open.push((id, method));
        let block = self.block(method);
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

    /// Waits for the next frame; None if it belongs to no pending call. So a reset behind a whole
    /// answer is none: it changes nothing.
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
        let end = (flags & END_STREAM != 0).then_some(End::Answered);
        match kind {
            DATA => {
                self.read += payload.len() as u32;
                if self.read > READ_MAX {
                    self.open_window(self.read);
                    self.read = 0;
                    self.flush()?;
                }
                return Ok(self.piece_of(id, payload, end));
            }
            HEADERS => return Ok(self.piece_of(id, &[], end)),
            SETTINGS if flags & ACK == 0 => {
                self.frame(SETTINGS, ACK, 0, &[]);
                self.flush()?;
            }
            PING if flags & ACK == 0 => {
                self.frame(PING, ACK, 0, payload);
                self.flush()?;
            }
            WINDOW_UPDATE if id == 0 => {
                self.window += i64::from(word(payload, 0)? & WINDOW);
            }
            RESET => {
                let code = word(payload, 0)?;
                return Ok(self.piece_of(id, &[], Some(End::Reset(code))));
            }
            GOAWAY => {
                let code = error_name(word(payload, 4)?);
                let debug = String::from_utf8_lossy(&payload[8..]);
                return Err(invalid(&format!("the server says goodbye: {code} {debug}")));
            }
            _ => (),
        }
        Ok(None)
    }

    fn piece_of(&mut self, id: u32, data: &[u8], end: Option<End>) -> Option<Piece> {
        let at = self.open.iter().position(|(open, _)| *open == id)?;
        let (_, method) = self.open[at];
        if end.is_some() {
            self.open.swap_remove(at);
        }
        Some(Piece { id, method, data: data.to_vec(), end })
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
    fn block(&mut self, method: &Method) -> Vec<u8> {
        let mut block = vec![0x83, 0x86]; // POST, http
        let authority = self.authority.clone();
        let client_id = self.client_id.clone();
        let fields = [
            (":path", method.path),
            (":authority", &authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "grpc-java-netty/1.56.0"),
            ("x-mq-protocol", "v2"),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
            ("x-mq-client-id", &client_id),
            ("grpc-timeout", method.timeout),
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

/// Name and number of an HTTP/2 error code.
pub fn error_name(code: u32) -> String {
    let name = ERRORS.get(code as usize).unwrap_or(&"unknown");
    format!("{name} ({code})")
}

fn word(payload: &[u8], at: usize) -> Result<u32> {
    let bytes = payload.get(at..at + 4).ok_or_else(|| invalid("a frame that is too short"))?;
    Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    static METHOD: Method = Method { path: "/service/Method", timeout: "30S" };
    static LATER: Method = Method { path: "/service/Later", timeout: "1M" };

    fn frame(kind: u8, flags: u8, id: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, id];
        frame.extend_from_slice(payload);
        frame
    }

    /// A client with calls 1 and 3, and what a server writes to it.
    fn client(written: &[Vec<u8>]) -> Http2 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut http2 = Http2::open(listener.local_addr().unwrap(), "id".into(), 64).unwrap();
        http2.call(&METHOD, b"a", true).unwrap();
        http2.call(&LATER, b"b", true).unwrap();
        listener.accept().unwrap().0.write_all(&written.concat()).unwrap();
        http2
    }

    #[test]
    fn takes_a_reset_behind_an_answer() {
        let mut http2 = client(&[
            frame(DATA, 0, 1, b"data"),
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[]),
            frame(RESET, 0, 1, &[0, 0, 0, 0]),
        ]);
        let piece = http2.piece().unwrap().unwrap();
        assert_eq!((piece.id, &piece.data[..], piece.end.is_none()), (1, &b"data"[..], true));
        let end = http2.piece().unwrap().unwrap().end;
        assert!(matches!(end, Some(End::Answered)));
        assert!(http2.piece().unwrap().is_none());
    }

    #[test]
    fn names_the_code_of_a_reset() {
        let mut http2 = client(&[frame(RESET, 0, 3, &[0, 0, 0, 8]), frame(DATA, 0, 3, b"late")]);
        let piece = http2.piece().unwrap().unwrap();
        assert!(piece.id == 3 && *piece.method == LATER);
        assert!(matches!(piece.end, Some(End::Reset(8))));
        assert!(http2.piece().unwrap().is_none());
        assert_eq!((error_name(8), error_name(99)), ("CANCEL (8)".into(), "unknown (99)".into()));
    }

    #[test]
    fn says_why_the_server_goes() {
        let mut http2 = client(&[frame(GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\x0btoo_many_pings")]);
        let text = http2.piece().err().unwrap().to_string();
        assert_eq!(text, "the server says goodbye: ENHANCE_YOUR_CALM (11) too_many_pings");
        assert!(client(&[frame(RESET, 0, 1, &[8])]).piece().is_err());
    }

    #[test]
    fn gives_each_method_its_time() {
        let mut http2 = client(&[]);
        for (method, time) in [(&METHOD, "30S"), (&LATER, "1M")] {
            let index = http2.known.iter().position(|known| known == time).unwrap();
            let place = 0x80 | (FIRST_OWN + http2.known.len() - 1 - index) as u8;
            assert!(http2.block(method).contains(&place), "the server has {time} in its table");
        }
    }
}
