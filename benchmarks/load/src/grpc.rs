//! Loads by gRPC: sends, receives with their acknowledgements, and consumers that wait.
//!
//! The messages of the protocol are written by hand: a load needs few of their fields.
use std::collections::HashMap;
use std::io;
use std::time::Instant;

use crate::frames;
use crate::http2::{error_name, End, Http2, Method, Piece};
use crate::options::Options;
use crate::worker::{failed, Worker, SUCCESS};

/// Time for a call, also for one that waits for messages.
pub(crate) const TIMEOUT: &str = "30S";
static SEND: Method =
    Method { path: "/apache.rocketmq.v2.MessagingService/SendMessage", timeout: TIMEOUT };
static RECEIVE: Method =
    Method { path: "/apache.rocketmq.v2.MessagingService/ReceiveMessage", timeout: TIMEOUT };
static ACK: Method =
    Method { path: "/apache.rocketmq.v2.MessagingService/AckMessage", timeout: TIMEOUT };
/// The stream stays open as long as its client lives, so the official Java client gives it 60
/// years. RocketMQ's proxy resets it when its time is over.
static TELEMETRY: Method =
    Method { path: "/apache.rocketmq.v2.MessagingService/Telemetry", timeout: "31536000M" };
pub(crate) const OK: u64 = 20_000;
const NO_MESSAGE: u64 = 40_401;
const TOO_MANY_REQUESTS: u64 = 42_900;
/// Codes from here on are failures of the server.
const SERVER_FAILURES: u64 = 50_000;
const PREFIX_BYTES: usize = 5;
const BUFFER_BYTES: usize = 256 << 10;
/// Longer than a round: what is not acknowledged at once is a fault, not a part of the load.
const INVISIBLE_S: u64 = 60;
/// The least that RocketMQ's proxy lets a receive wait.
const WAIT_S: u64 = 5;
const SIMPLE_CONSUMER: u64 = 3;

impl Worker {
    fn grpc(&self) -> io::Result<Http2> {
        let id = format!("load-{}-{}", std::process::id(), self.number);
        Http2::open(self.options.grpc_address()?, id, BUFFER_BYTES)
    }

    /// DEPTH sends at once, each a call.
    pub(crate) fn send_by_grpc(&mut self) -> io::Result<()> {
        let mut http2 = self.grpc()?;
        let mut key = frames::now_us();
        while !self.shared.stopped() {
            let start = Instant::now();
            for _ in 0..self.options.depth {
                let id = frames::message_id(self.number, key);
                key += 1;
                http2.call(&SEND, &send(&self.options, &id), true)?;
            }
            http2.flush()?;
            let mut accepted = 0;
            for answer in answers(&mut http2, self.options.depth)? {
                accepted += u64::from(self.check(&answer)? == Some(OK));
            }
            self.finish_round(start, accepted);
        }
        Ok(())
    }

    /// DEPTH receives at once, then an acknowledgement for all messages of each.
    pub(crate) fn receive_by_grpc(&mut self, waits: bool) -> io::Result<()> {
        let mut http2 = self.grpc()?;
        // A new group receives all messages of its topic first. Consumers that wait go on where
        // those of the last run were: otherwise the new messages come behind minutes of old ones.
        let run = if waits { 0 } else { std::process::id() };
        let group = format!("load_receiver_{run}");
        self.connection.write(&frames::group_config(&group))?;
        if self.connection.answer()?.code != SUCCESS {
            return Err(failed("the broker does not make the group"));
        }
        begin(&mut http2, &settings(&self.options.topic, &group))?;
        let request = receive(&self.options, &group, &self.broker);
        let mut acks: Vec<Acknowledgement> = Vec::new();
        while !self.shared.stopped() {
            let start = Instant::now();
            for _ in 0..self.options.depth {
                http2.call(&RECEIVE, &request, true)?;
            }
            http2.flush()?;
            for answer in answers(&mut http2, self.options.depth)? {
                let now = frames::now_us();
                let messages = answer.messages.iter();
                let entries: Vec<_> = messages.filter_map(|one| received(one)).collect();
                if entries.is_empty() {
                    self.check(&answer)?;
                    continue;
                }
                if waits {
                    for stamp in entries.iter().filter_map(|(id, _)| frames::number_in(id)) {
                        self.finish(now.saturating_sub(self.options.due_us(stamp)), 1);
                    }
                }
                let request = acknowledge(&self.options.topic, &group, &entries);
                acks.push(Acknowledgement { request, messages: entries.len() as u64 });
            }
            let mut pending = HashMap::with_capacity(acks.len());
            for ack in acks.drain(..) {
                pending.insert(http2.call(&ACK, &ack.request, true)?, ack);
            }
            http2.flush()?;
            let mut count = 0;
            for answer in answers(&mut http2, pending.len())? {
                let ack = pending.remove(&answer.id).ok_or_else(|| failed("a foreign answer"))?;
                match self.check(&answer)? {
                    Some(OK) => count += ack.messages,
                    Some(code) if !is_passing(code) => (),
                    _ => acks.push(ack), // with those of the next round
                }
            }
            if !waits && count > 0 {
                self.finish_round(start, count);
            }
        }
        Ok(())
    }

    /// The code of an answer; None if the server reset the call. Counts all but success, which is
    /// of receives without a message that there is none.
    pub(crate) fn check(&self, answer: &Answer) -> io::Result<Option<u64>> {
        let path = answer.method.path;
        if let Some(code) = answer.reset {
            self.shared.refuse(format!("reset {}", error_name(code)), path.as_bytes());
            return Ok(None);
        }
        let first = answer.messages.first();
        let first = first.ok_or_else(|| failed(format!("{path}: an answer without a message")))?;
        let code = code(first).unwrap_or(0);
        if code != (if *answer.method == RECEIVE { NO_MESSAGE } else { OK }) {
            self.shared.refuse(code, first);
        }
        Ok(Some(code))
    }
}

struct Acknowledgement {
    request: Vec<u8>,
    messages: u64,
}

/// Whether clients acknowledge again after an answer with that code.
fn is_passing(code: u64) -> bool {
    code == TOO_MANY_REQUESTS || code >= SERVER_FAILURES
}

/// Opens the stream with a client's settings, and waits for those of the proxy.
pub(crate) fn begin(http2: &mut Http2, settings: &[u8]) -> io::Result<()> {
    http2.call(&TELEMETRY, settings, false)?;
    http2.flush()?;
    loop {
        match http2.piece()? {
            Some(Piece { end: Some(end), .. }) => return Err(ended(&end)),
            Some(piece) if !piece.data.is_empty() => return Ok(()),
            _ => (),
        }
    }
}

fn ended(end: &End) -> io::Error {
    match end {
        End::Answered => failed("the proxy ended the stream of telemetry"),
        End::Reset(code) => {
            let code = error_name(*code);
            failed(format!("the proxy reset the stream of telemetry: {code}"))
        }
    }
}

/// The messages of an answer, or the error code of a reset.
pub(crate) struct Answer {
    pub id: u32,
    pub method: &'static Method,
    pub messages: Vec<Vec<u8>>,
    pub reset: Option<u32>,
}

/// Waits for the ends of that number of calls.
pub(crate) fn answers(http2: &mut Http2, count: usize) -> io::Result<Vec<Answer>> {
    let mut open: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut whole = Vec::with_capacity(count);
    while whole.len() < count {
        let piece = match http2.piece()? {
            Some(piece) => piece,
            None => continue,
        };
        if *piece.method == TELEMETRY {
            match piece.end {
                Some(end) => return Err(ended(&end)),
                None => continue,
            }
        }
        if !piece.data.is_empty() {
            open.entry(piece.id).or_default().extend_from_slice(&piece.data);
        }
        if let Some(end) = piece.end {
            let data = open.remove(&piece.id).unwrap_or_default();
            let (messages, reset) = match end {
                End::Answered => (messages(&data)?, None),
                End::Reset(code) => (Vec::new(), Some(code)),
            };
            whole.push(Answer { id: piece.id, method: piece.method, messages, reset });
        }
    }
    Ok(whole)
}

fn messages(mut data: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    while data.len() >= PREFIX_BYTES {
        let size = u32::from_be_bytes([data[1], data[2], data[3], data[4]]) as usize;
        let message =
            data.get(PREFIX_BYTES..PREFIX_BYTES + size).ok_or_else(|| failed("a torn message"))?;
        found.push(message.to_vec());
        data = &data[PREFIX_BYTES + size..];
    }
    Ok(found)
}

// --- requests ---

fn send(options: &Options, id: &str) -> Vec<u8> {
    let mut born = Vec::new();
    number(&mut born, 1, frames::now_us() / 1_000_000);
    let mut system = Vec::new();
    bytes(&mut system, 3, id.as_bytes());
    number(&mut system, 5, 1); // IDENTITY
    number(&mut system, 6, 1); // NORMAL
    bytes(&mut system, 7, &born);
    bytes(&mut system, 8, b"127.0.0.1");
    let mut message = Vec::new();
    bytes(&mut message, 1, &resource(&options.topic));
    bytes(&mut message, 3, &system);
    bytes(&mut message, 4, &vec![b'x'; options.body_bytes]);
    let mut request = Vec::new();
    bytes(&mut request, 1, &message);
    request
}

fn receive(options: &Options, group: &str, broker: &str) -> Vec<u8> {
    let mut named = Vec::new();
    bytes(&mut named, 1, broker.as_bytes());
    let mut queue = Vec::new();
    bytes(&mut queue, 1, &resource(&options.topic));
    bytes(&mut queue, 4, &named);
    let mut request = Vec::new();
    bytes(&mut request, 1, &resource(group));
    bytes(&mut request, 2, &queue);
    bytes(&mut request, 3, &all());
    number(&mut request, 4, options.batch as u64);
    bytes(&mut request, 5, &seconds(INVISIBLE_S));
    bytes(&mut request, 7, &seconds(WAIT_S));
    request
}

fn acknowledge(topic: &str, group: &str, entries: &[(String, String)]) -> Vec<u8> {
    let mut request = Vec::new();
    bytes(&mut request, 1, &resource(group));
    bytes(&mut request, 2, &resource(topic));
    for (id, handle) in entries {
        let mut entry = Vec::new();
        bytes(&mut entry, 1, id.as_bytes());
        bytes(&mut entry, 2, handle.as_bytes());
        bytes(&mut request, 3, &entry);
    }
    request
}

fn settings(topic: &str, group: &str) -> Vec<u8> {
    let mut entry = Vec::new();
    bytes(&mut entry, 1, &resource(topic));
    bytes(&mut entry, 2, &all());
    let mut subscription = Vec::new();
    bytes(&mut subscription, 1, &resource(group));
    bytes(&mut subscription, 2, &entry);
    let mut settings = Vec::new();
    number(&mut settings, 1, SIMPLE_CONSUMER);
    bytes(&mut settings, 4, &seconds(3));
    bytes(&mut settings, 6, &subscription);
    let mut command = Vec::new();
    bytes(&mut command, 2, &settings);
    command
}

pub(crate) fn resource(name: &str) -> Vec<u8> {
    let mut found = Vec::new();
    bytes(&mut found, 2, name.as_bytes());
    found
}

pub(crate) fn all() -> Vec<u8> {
    let mut expression = Vec::new();
    number(&mut expression, 1, 1); // TAG
    bytes(&mut expression, 2, b"*");
    expression
}

pub(crate) fn seconds(count: u64) -> Vec<u8> {
    let mut duration = Vec::new();
    number(&mut duration, 1, count);
    duration
}

// --- Protobuf ---

pub(crate) fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

pub(crate) fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    varint(out, value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read_varint(data: &mut &[u8]) -> Option<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (&byte, rest) = data.split_first()?;
        *data = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
        shift += 7;
        if shift > 63 {
            return None;
        }
    }
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The first value of a field.
fn field(message: &[u8], wanted: u64) -> Option<Value<'_>> {
    let mut rest = message;
    while !rest.is_empty() {
        let tag = read_varint(&mut rest)?;
        let value = match tag & 7 {
            0 => Value::Number(read_varint(&mut rest)?),
            2 => {
                let size = read_varint(&mut rest)? as usize;
                let value = rest.get(..size)?;
                rest = &rest[size..];
                Value::Bytes(value)
            }
            _ => return None,
        };
        if tag >> 3 == wanted {
            return Some(value);
        }
    }
    None
}

fn bytes_of(message: &[u8], wanted: u64) -> Option<&[u8]> {
    match field(message, wanted)? {
        Value::Bytes(value) => Some(value),
        Value::Number(_) => None,
    }
}

/// The code of an answer's status, which is its first field.
pub(crate) fn code(answer: &[u8]) -> Option<u64> {
    match field(bytes_of(answer, 1)?, 1)? {
        Value::Number(value) => Some(value),
        Value::Bytes(_) => None,
    }
}

/// Id and handle of a received message; None for the other parts of an answer.
fn received(part: &[u8]) -> Option<(String, String)> {
    let system = bytes_of(bytes_of(part, 2)?, 3)?;
    let text = |wanted| Some(String::from_utf8_lossy(bytes_of(system, wanted)?).into_owned());
    Some((text(3)?, text(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let mut system = Vec::new();
        number(&mut system, 13, 300);
        bytes(&mut system, 3, b"id");
        bytes(&mut system, 12, b"handle");
        let (mut message, mut part) = (Vec::new(), Vec::new());
        bytes(&mut message, 3, &system);
        bytes(&mut part, 2, &message);
        assert_eq!(received(&part), Some(("id".into(), "handle".into())));
        assert_eq!(code(&part), None);
    }

    #[test]
    fn reads_codes() {
        let (mut status, mut answer) = (Vec::new(), Vec::new());
        number(&mut status, 1, NO_MESSAGE);
        bytes(&mut answer, 1, &status);
        assert_eq!(code(&answer), Some(NO_MESSAGE));
        assert_eq!(code(&[0xff]), None);
    }

    #[test]
    fn cuts_messages() {
        let data = [0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 0, 0];
        assert_eq!(messages(&data).unwrap(), vec![vec![1, 2], vec![]]);
        assert!(messages(&[0, 0, 0, 0, 2, 1]).is_err());
    }
}
