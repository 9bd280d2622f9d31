//! Request frames as templates.
//!
//! A frame is `total length (4) | header length (4) | header | body`; big endian, the first byte
//! of the header length is the header's form, 0 for JSON. The frames of a round are laid out once
//! in one buffer, with fixed-width digits where requests differ: opaque, queue, born time, and the
//! 16 last hex digits of each message's UNIQ_KEY. A round rewrites those bytes and no others.
use std::time::{SystemTime, UNIX_EPOCH};

use crate::options::Options;

/// Opaques have seven digits, so that they are of one width; they wrap long after any answer.
const OPAQUE_FIRST: u64 = 1_000_000;
const OPAQUE_END: u64 = 10_000_000;
const CLIENT_VERSION: u32 = 497;

/// Where the changing digits of one request are.
struct Slot {
    opaque: usize,
    queue: usize,
    born: usize,
    keys: Vec<usize>,
}

/// The requests of one round of one connection.
pub struct Round {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
    queues: u64,
    turn: u64,
    opaque: u64,
    key: u64,
}

impl Round {
    /// Single sends (310, SEND_MESSAGE_V2), one message a frame.
    pub fn send(options: &Options, connection: usize, broker: &str) -> Round {
        let body = vec![b'x'; options.body_bytes];
        let properties = format!("{}\\u0002WAIT\\u0001true", unique_key(connection, "\\u0001"));
        let header = send_header(options, 310, broker, &properties, "false");
        Round::of(options, connection, |_| (header.clone(), body.clone()))
    }

    /// Batch sends (320, SEND_BATCH_MESSAGE), `batch` messages a frame.
    pub fn batch(options: &Options, connection: usize, broker: &str) -> Round {
        let body = batch_body(options, connection);
        let header = send_header(options, 320, broker, "WAIT\\u0001true", "true");
        Round::of(options, connection, |_| (header.clone(), body.clone()))
    }

    fn of(
        options: &Options,
        connection: usize,
        request: impl Fn(usize) -> (String, Vec<u8>),
    ) -> Round {
        let (mut bytes, mut slots) = (Vec::new(), Vec::new());
        for number in 0..options.depth {
            let (header, body) = request(number);
            let start = bytes.len();
            append_frame(&mut bytes, header.as_bytes(), &body);
            slots.push(Slot::find(&bytes, start));
        }
        // Keys stay unique over runs: milliseconds times 65,536 leave room for 65 million
        // messages a second on one connection.
        let key = now_ms() << 16;
        let (queues, turn) = (options.queues as u64, connection as u64);
        Round { bytes, slots, queues, turn, opaque: OPAQUE_FIRST, key }
    }

    /// Gives the bytes of the next round, and the opaque of its first request.
    pub fn next(&mut self) -> (&[u8], u64) {
        if self.opaque + self.slots.len() as u64 > OPAQUE_END {
            self.opaque = OPAQUE_FIRST;
        }
        let first = self.opaque;
        let mut born = [0; 13];
        write_decimal(&mut born, now_ms());
        for slot in &self.slots {
            write_decimal(&mut self.bytes[slot.opaque..slot.opaque + 7], self.opaque);
            self.bytes[slot.queue] = b'0' + (self.turn % self.queues) as u8;
            self.bytes[slot.born..slot.born + 13].copy_from_slice(&born);
            for &at in &slot.keys {
                write_hex(&mut self.bytes[at..at + 16], self.key);
                self.key += 1;
            }
            self.opaque += 1;
            self.turn += 1;
        }
        (&self.bytes, first)
    }
}

impl Slot {
    fn find(bytes: &[u8], start: usize) -> Slot {
        let frame = &bytes[start..];
        let after = |marker: &str| start + find(frame, marker.as_bytes()).unwrap() + marker.len();
        let mut keys = Vec::new();
        let marker = b"KEY-DIGITS-HERE-";
        let mut at = 0;
        while let Some(found) = find(&frame[at..], marker) {
            keys.push(start + at + found);
            at += found + marker.len();
        }
        Slot {
            opaque: after("\"opaque\":"),
            queue: after("\"e\":\""),
            born: after("\"g\":\""),
            keys,
        }
    }
}

/// One pull (11, PULL_MESSAGE) of at most `batch` messages, with its subscription and no wait.
pub fn pull(options: &Options, broker: &str, queue: usize, offset: u64, opaque: u64) -> Vec<u8> {
    let header = format!(
        "{{\"code\":11,\"extFields\":{{\"bname\":\"{broker}\",\"commitOffset\":\"0\",\
         \"consumerGroup\":\"load_puller\",\"expressionType\":\"TAG\",\"maxMsgBytes\":\"262144\",\
         \"maxMsgNums\":\"{}\",\"queueId\":\"{queue}\",\"queueOffset\":\"{offset}\",\
         \"subVersion\":\"1\",\"subscription\":\"*\",\"suspendTimeoutMillis\":\"1000\",\
         \"sysFlag\":\"4\",\"topic\":\"{}\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{opaque},\
         \"serializeTypeCurrentRPC\":\"JSON\",\"version\":{CLIENT_VERSION}}}",
        options.batch, options.topic,
    );
    let mut bytes = Vec::with_capacity(header.len() + 8);
    append_frame(&mut bytes, header.as_bytes(), &[]);
    bytes
}

fn send_header(
    options: &Options,
    code: u32,
    broker: &str,
    properties: &str,
    batch: &str,
) -> String {
    format!(
        "{{\"code\":{code},\"extFields\":{{\"a\":\"load_producer\",\"b\":\"{}\",\"c\":\"TBW102\",\
         \"d\":\"{}\",\"e\":\"0\",\"f\":\"0\",\"g\":\"0000000000000\",\"h\":\"0\",\
         \"i\":\"{properties}\",\"j\":\"0\",\"k\":\"false\",\"m\":\"{batch}\",\"n\":\"{broker}\"}},\
         \"flag\":0,\"language\":\"JAVA\",\"opaque\":1000000,\
         \"serializeTypeCurrentRPC\":\"JSON\",\"version\":{CLIENT_VERSION}}}",
        options.topic, options.queues,
    )
}

/// A message's own id as the Java client makes it: 32 hex digits that begin with the address.
fn unique_key(connection: usize, separator: &str) -> String {
    let process = std::process::id() as u16;
    format!("UNIQ_KEY{separator}7F000001{process:04X}{connection:04X}KEY-DIGITS-HERE-")
}

/// Messages of a batch body: `size, magic, crc, flag, body size, body, properties size, properties`.
fn batch_body(options: &Options, connection: usize) -> Vec<u8> {
    let properties = format!("{}\u{2}WAIT\u{1}true", unique_key(connection, "\u{1}"));
    let size = 22 + options.body_bytes + properties.len();
    let mut message = Vec::with_capacity(size);
    message.extend_from_slice(&(size as u32).to_be_bytes());
    message.extend_from_slice(&[0; 12]);
    message.extend_from_slice(&(options.body_bytes as u32).to_be_bytes());
    message.resize(message.len() + options.body_bytes, b'x');
    message.extend_from_slice(&(properties.len() as u16).to_be_bytes());
    message.extend_from_slice(properties.as_bytes());
    message.repeat(options.batch)
}

fn append_frame(bytes: &mut Vec<u8>, header: &[u8], body: &[u8]) {
    bytes.extend_from_slice(&((4 + header.len() + body.len()) as u32).to_be_bytes());
    bytes.extend_from_slice(&(header.len() as u32).to_be_bytes());
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(body);
}

pub fn find(bytes: &[u8], marker: &[u8]) -> Option<usize> {
    bytes.windows(marker.len()).position(|window| window == marker)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

fn write_decimal(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

fn write_hex(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789ABCDEF"[(value & 15) as usize];
        value >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &str) -> Options {
        let line = format!("{words} --broker broker-a=127.0.0.1:1");
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        Options::parse(&words).unwrap()
    }

    #[test]
    fn a_round_changes_opaque_queue_and_keys_only() {
        let mut round = Round::send(&options("send --depth 2 --body-bytes 3"), 1, "broker-a");
        let (first, opaque) = round.next();
        let first = String::from_utf8_lossy(first).into_owned();
        assert_eq!(opaque, 1_000_000);
        assert!(first.contains("\"opaque\":1000001") && first.contains("\"e\":\"2\""));
        assert!(!first.contains("KEY-DIGITS-HERE-") && first.ends_with("xxx"));
        let (second, opaque) = round.next();
        assert_eq!((opaque, second.len()), (1_000_002, first.len()));
    }

    #[test]
    fn a_batch_body_is_whole_messages_with_keys_of_their_own() {
        let mut round = Round::batch(&options("batch --depth 1 --batch 3"), 0, "broker-a");
        assert_eq!(round.slots[0].keys.len(), 3);
        let (bytes, _) = round.next();
        let header = u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let body = &bytes[8 + header..];
        let size = u32::from_be_bytes(body[..4].try_into().unwrap()) as usize;
        assert_eq!(size * 3, body.len());
        assert_ne!(&body[..size], &body[size..size * 2]);
    }
}
