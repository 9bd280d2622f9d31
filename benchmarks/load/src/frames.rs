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
const PRODUCER_GROUP: &str = "load_producer";
const TRANSACTION_PREPARED: u32 = 4;
const TRANSACTION_COMMIT: u32 = 8;
const PULL_MAY_WAIT: u32 = 2;
const PULL_HAS_SUBSCRIPTION: u32 = 4;
/// Longer than a round: what is not acknowledged at once is a fault, not a part of the load.
const INVISIBLE_MS: u32 = 60_000;

/// Where the changing digits of one request are.
struct Slot {
    opaque: usize,
    queue: usize,
    born: usize,
    due: Option<usize>,
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
        Round::singles(options, connection, broker, 0, "")
    }

    /// Halves of transactions, which are sends with two more properties and a flag.
    pub fn half(options: &Options, connection: usize, broker: &str) -> Round {
        let properties = format!("TRAN_MSG\\u0001true\\u0002PGROUP\\u0001{PRODUCER_GROUP}\\u0002");
        Round::singles(options, connection, broker, TRANSACTION_PREPARED, &properties)
    }

    fn singles(
        options: &Options,
        connection: usize,
        broker: &str,
        sys_flag: u32,
        more: &str,
    ) -> Round {
        let body = vec![b'x'; options.body_bytes];
        let given = options.property.as_ref();
        let mut given =
            given.map_or(String::new(), |(name, value)| format!("{name}\\u0001{value}\\u0002"));
        if options.due_step_ms > 0 {
            given += "TIMER_DELIVER_MS\\u0001DUE-MS-DIGITS\\u0002";
        }
        let key = unique_key(connection, "\\u0001");
        let properties = format!("{more}{given}{key}\\u0002WAIT\\u0001true");
        let header = send_header(options, 310, broker, sys_flag, &properties, "false");
        Round::of(options, connection, |_| (header.clone(), body.clone()))
    }

    /// Batch sends (320, SEND_BATCH_MESSAGE), `batch` messages a frame.
    pub fn batch(options: &Options, connection: usize, broker: &str) -> Round {
        let body = batch_body(options, connection);
        let header = send_header(options, 320, broker, 0, "WAIT\\u0001true", "true");
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

    /// Has the keys of the next round begin with the time at which it is sent: so that of one
    /// message is found again. Its requests say when they are due, if they do.
    pub fn sent_at(&mut self, sent_us: u64, due_us: u64) {
        self.key = sent_us;
        for at in self.slots.iter().filter_map(|slot| slot.due) {
            write_decimal(&mut self.bytes[at..at + 13], due_us / 1000);
        }
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
            due: find(frame, b"DUE-MS-DIGITS").map(|at| start + at),
            keys,
        }
    }
}

/// What a pull does where there is nothing: answer so, or wait for a message.
#[derive(Clone, Copy, PartialEq)]
pub enum Wait {
    No,
    Yes,
}

/// One pull (11, PULL_MESSAGE) of at most `batch` messages, with its subscription.
pub fn pull(
    options: &Options,
    broker: &str,
    queue: usize,
    offset: u64,
    opaque: u64,
    wait: Wait,
) -> Vec<u8> {
    let flags = PULL_HAS_SUBSCRIPTION | if wait == Wait::Yes { PULL_MAY_WAIT } else { 0 };
    let (kind, wanted) =
        options.expression.as_ref().map_or(("TAG", "*"), |expression| ("SQL92", expression));
    let fields = format!(
        "\"bname\":\"{broker}\",\"commitOffset\":\"0\",\"consumerGroup\":\"load_puller\",\
         \"expressionType\":\"{kind}\",\"maxMsgBytes\":\"262144\",\"maxMsgNums\":\"{}\",\
         \"queueId\":\"{queue}\",\"queueOffset\":\"{offset}\",\"subVersion\":\"1\",\
         \"subscription\":\"{wanted}\",\"suspendTimeoutMillis\":\"1000\",\"sysFlag\":\"{flags}\",\
         \"topic\":\"{}\"",
        options.batch, options.topic,
    );
    request(11, &fields, opaque)
}

/// Where the next message of a queue will be (30, GET_MAX_OFFSET).
pub fn max_offset(topic: &str, queue: usize, opaque: u64) -> Vec<u8> {
    request(30, &format!("\"queueId\":\"{queue}\",\"topic\":\"{topic}\""), opaque)
}

/// The configuration of a group (352), which makes it if there is none.
pub fn group_config(group: &str) -> Vec<u8> {
    request(352, &format!("\"group\":\"{group}\""), 0)
}

/// The commit of a half (37, END_TRANSACTION), by its physical offset and its queue offset.
pub fn commit(topic: &str, half: (u64, u64), opaque: u64) -> Vec<u8> {
    let (physical_offset, queue_offset) = half;
    let fields = format!(
        "\"commitLogOffset\":\"{physical_offset}\",\"commitOrRollback\":\"{TRANSACTION_COMMIT}\",\
         \"fromTransactionCheck\":\"false\",\"producerGroup\":\"{PRODUCER_GROUP}\",\
         \"topic\":\"{topic}\",\"tranStateTableOffset\":\"{queue_offset}\"",
    );
    request(37, &fields, opaque)
}

/// A message sent back (36, CONSUMER_SEND_MSG_BACK), by its physical offset, with a delay level.
pub fn send_back(
    topic: &str,
    group: &str,
    physical_offset: u64,
    level: u32,
    opaque: u64,
) -> Vec<u8> {
    let fields = format!(
        "\"delayLevel\":\"{level}\",\"group\":\"{group}\",\"maxReconsumeTimes\":\"16\",\
         \"offset\":\"{physical_offset}\",\"originMsgId\":\"{physical_offset:032X}\",\
         \"originTopic\":\"{topic}\",\"unitMode\":\"false\"",
    );
    request(36, &fields, opaque)
}

/// A pop (200050) of at most `batch` messages: of one queue in order, or else of any.
pub fn pop(options: &Options, group: &str, queue: usize, wait: Wait) -> Vec<u8> {
    let queue = if options.order { queue as i64 } else { -1 };
    // What waits begins at the end (1), what does not at the first message (0).
    let (poll_ms, begin) = if wait == Wait::Yes { (1000, 1) } else { (0, 0) };
    let fields = format!(
        "\"bornTime\":\"{}\",\"consumerGroup\":\"{group}\",\"exp\":\"*\",\"expType\":\"TAG\",\
         \"initMode\":\"{begin}\",\"invisibleTime\":\"{INVISIBLE_MS}\",\"maxMsgNums\":\"{}\",\
         \"order\":\"{}\",\"pollTime\":\"{poll_ms}\",\"queueId\":\"{queue}\",\"topic\":\"{}\"",
        now_ms(),
        options.batch,
        options.order,
        options.topic,
    );
    request(200_050, &fields, 0)
}

/// What a popped message is acknowledged by.
pub struct Handle {
    pub queue: u64,
    pub offset: u64,
    pub text: String,
}

/// An acknowledgement (200051) of a popped message.
pub fn ack(topic: &str, group: &str, handle: &Handle, opaque: u64) -> Vec<u8> {
    let fields = format!(
        "\"consumerGroup\":\"{group}\",\"extraInfo\":\"{}\",\"offset\":\"{}\",\
         \"queueId\":\"{}\",\"topic\":\"{topic}\"",
        handle.text, handle.offset, handle.queue,
    );
    request(200_051, &fields, opaque)
}

fn request(code: u32, fields: &str, opaque: u64) -> Vec<u8> {
    let header = format!(
        "{{\"code\":{code},\"extFields\":{{{fields}}},\"flag\":0,\"language\":\"JAVA\",\
         \"opaque\":{opaque},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{CLIENT_VERSION}}}",
    );
    let mut bytes = Vec::with_capacity(header.len() + 8);
    append_frame(&mut bytes, header.as_bytes(), &[]);
    bytes
}

fn send_header(
    options: &Options,
    code: u32,
    broker: &str,
    sys_flag: u32,
    properties: &str,
    batch: &str,
) -> String {
    format!(
        "{{\"code\":{code},\"extFields\":{{\"a\":\"{PRODUCER_GROUP}\",\"b\":\"{}\",\"c\":\"TBW102\",\
         \"d\":\"{}\",\"e\":\"0\",\"f\":\"{sys_flag}\",\"g\":\"0000000000000\",\"h\":\"0\",\
         \"i\":\"{properties}\",\"j\":\"0\",\"k\":\"false\",\"m\":\"{batch}\",\"n\":\"{broker}\"}},\
         \"flag\":0,\"language\":\"JAVA\",\"opaque\":1000000,\
         \"serializeTypeCurrentRPC\":\"JSON\",\"version\":{CLIENT_VERSION}}}",
        options.topic, options.queues,
    )
}

/// A message's own id as the Java client makes it: 32 hex digits that begin with the address.
fn unique_key(connection: usize, separator: &str) -> String {
    format!("UNIQ_KEY{separator}{}{connection:04X}KEY-DIGITS-HERE-", process_key())
}

/// The id of a message with a number in it, as `key_of` and `number_in` find it again.
pub fn message_id(connection: usize, number: u64) -> String {
    format!("{}{connection:04X}{number:016X}", process_key())
}

/// The number in the id of a message, if this run has sent it.
pub fn number_in(id: &str) -> Option<u64> {
    let rest = id.strip_prefix(&process_key())?;
    u64::from_str_radix(rest.get(4..20)?, 16).ok()
}

/// What the keys of a run begin with.
fn process_key() -> String {
    format!("7F000001{:04X}", std::process::id() as u16)
}

/// The number in a stored message's own id, if this run has sent it.
pub fn key_of(record: &[u8]) -> Option<u64> {
    let marker = format!("UNIQ_KEY\u{1}{}", process_key());
    let at = find(record, marker.as_bytes())? + marker.len() + 4;
    let digits = std::str::from_utf8(record.get(at..at + 16)?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}

/// Messages of a batch body: `size, magic, crc, flag, body size, body, properties size, properties`.
fn batch_body(options: &Options, connection: usize) -> Vec<u8> {
    let key = unique_key(connection, "\u{1}");
    let mut body = Vec::new();
    for number in 0..options.batch {
        let marks = if options.marked { marks(number) } else { String::new() };
        let properties = format!("{marks}{key}\u{2}WAIT\u{1}true");
        let size = 22 + options.body_bytes + properties.len();
        body.extend_from_slice(&(size as u32).to_be_bytes());
        body.extend_from_slice(&[0; 12]);
        body.extend_from_slice(&(options.body_bytes as u32).to_be_bytes());
        body.resize(body.len() + options.body_bytes, b'x');
        body.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        body.extend_from_slice(properties.as_bytes());
    }
    body
}

/// What a batch's members can be told apart by: two regions in turn, prices 10, 12, 14, ...
fn marks(number: usize) -> String {
    let region = ["eu", "us"][number % 2];
    format!("region\u{1}{region}\u{2}price\u{1}{}\u{2}", 10 + number * 2)
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

/// The wall clock, by which brokers say what is due.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

fn now_ms() -> u64 {
    now_us() / 1000
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

    #[test]
    fn members_can_be_told_apart_by_marks() {
        let mut round = Round::batch(&options("batch --batch 2 --marked true"), 0, "broker-a");
        let text = String::from_utf8_lossy(round.next().0).into_owned();
        assert!(text.contains("region\u{1}eu\u{2}price\u{1}10\u{2}UNIQ_KEY"));
        assert!(text.contains("region\u{1}us\u{2}price\u{1}12\u{2}UNIQ_KEY"));
    }

    #[test]
    fn a_half_is_a_send_with_a_flag_and_its_group() {
        let mut round = Round::half(&options("transaction --depth 1"), 0, "broker-a");
        let text = String::from_utf8_lossy(round.next().0).into_owned();
        assert!(text.contains("\"f\":\"4\"") && text.contains("\"a\":\"load_producer\""));
        assert!(text.contains("TRAN_MSG\\u0001true\\u0002PGROUP\\u0001load_producer\\u0002UNIQ"));
    }

    #[test]
    fn a_key_is_found_again_in_what_is_stored() {
        let options = options("push --depth 1 --property DELAY=1");
        let mut round = Round::send(&options, 3, "broker-a");
        round.sent_at(0x1234, 0);
        let text = String::from_utf8_lossy(round.next().0).into_owned();
        let stored = text.replace("\\u0001", "\u{1}").replace("\\u0002", "\u{2}");
        assert!(stored.contains("DELAY\u{1}1\u{2}UNIQ_KEY"));
        assert_eq!(key_of(stored.as_bytes()), Some(0x1234));
        assert_eq!(key_of(b"UNIQ_KEY\x017F00000100010000"), None);
    }

    #[test]
    fn a_request_says_when_it_is_due() {
        let mut round = Round::send(&options("push --depth 1 --due-step-ms 1000"), 3, "broker-a");
        round.sent_at(1, 1_700_000_000_000_000);
        let text = String::from_utf8_lossy(round.next().0).into_owned();
        assert!(text.contains("TIMER_DELIVER_MS\\u00011700000000000\\u0002UNIQ_KEY"));
    }

    #[test]
    fn a_pull_may_wait_and_may_choose() {
        let options = options("pull");
        let text = |options: &Options, wait| {
            String::from_utf8_lossy(&pull(options, "broker-a", 1, 2, 3, wait)).into_owned()
        };
        assert!(text(&options, Wait::No).contains("\"sysFlag\":\"4\""));
        assert!(text(&options, Wait::Yes).contains("\"sysFlag\":\"6\""));
        let chosen = Options { expression: Some("price > 5".into()), ..options };
        assert!(text(&chosen, Wait::No).contains("\"expressionType\":\"SQL92\""));
        assert!(text(&chosen, Wait::No).contains("\"subscription\":\"price > 5\""));
    }
}
