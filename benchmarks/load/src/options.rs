//! The command line: `firearrow-load MODE --broker NAME=HOST:PORT ... [--key value ...]`; see `Mode`.
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use crate::worker::failed;

/// No run lasts longer, whatever was asked for.
const SECONDS_MAX: f64 = 600.0;
/// One digit of a template holds the queue number.
const QUEUES_MAX: usize = 10;
const CONNECTIONS_MAX: usize = 1024;
/// Of them, many share a thread.
const IDLE_MAX: usize = 100_000;
const IDLE_THREADS: usize = 8;
const PERIOD_MS_MAX: usize = 60_000;
const DEPTH_MAX: usize = 1024;
const BATCH_MAX: usize = 1024;
/// Messages a second that the paced mode can be asked for; one thread sleeps between its messages.
const RATE_MAX: usize = 100_000;
const DUE_MS_MAX: usize = 60_000;
/// Java's default maxMessageSize.
const BODY_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Send,
    Batch,
    Pull,
    /// Halves, and a commit for each.
    Transaction,
    /// Consumed messages sent back, each another one.
    SendBack,
    /// So many messages a second, to consumers that wait for them.
    Push,
    /// Pops, and an acknowledgement for each message.
    Pop,
    /// Sends by gRPC.
    GrpcSend,
    /// Receives by gRPC, and an acknowledgement for each.
    GrpcReceive,
    /// So many messages a second, to consumers that wait by gRPC.
    GrpcPush,
    /// Clients by gRPC that only say that they are alive.
    GrpcIdle,
}

const MODES: [(&str, Mode); 11] = [
    ("send", Mode::Send),
    ("batch", Mode::Batch),
    ("pull", Mode::Pull),
    ("transaction", Mode::Transaction),
    ("send-back", Mode::SendBack),
    ("push", Mode::Push),
    ("pop", Mode::Pop),
    ("grpc-send", Mode::GrpcSend),
    ("grpc-receive", Mode::GrpcReceive),
    ("grpc-push", Mode::GrpcPush),
    ("grpc-idle", Mode::GrpcIdle),
];

impl Mode {
    pub fn name(self) -> &'static str {
        MODES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }

    fn of(word: Option<&String>) -> Option<Mode> {
        MODES
            .iter()
            .find(|(name, _)| word.map_or(false, |word| word == name))
            .map(|(_, mode)| *mode)
    }
}

#[derive(Clone, Debug)]
pub struct Broker {
    pub name: String,
    pub address: SocketAddr,
}

/// When a warm-up is over: `windows` in a row whose rates lie within `within` of the highest.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp {
    pub window: Duration,
    pub least: Duration,
    pub most: Duration,
    pub within: f64,
}

#[derive(Clone, Copy, Debug)]
pub enum Plan {
    Measure { lead: Duration, window: Duration },
    WarmUp(WarmUp),
}

#[derive(Clone, Debug)]
pub struct Options {
    pub mode: Mode,
    pub brokers: Vec<Broker>,
    /// Where gRPC is served; the modes for it only.
    pub grpc: Option<SocketAddr>,
    pub topic: String,
    pub connections: usize,
    pub depth: usize,
    pub body_bytes: usize,
    pub batch: usize,
    pub queues: usize,
    /// Messages a second of all connections together; the paced mode only.
    pub rate: usize,
    /// From one heartbeat of an idle client to its next.
    pub period_ms: usize,
    /// How long after it was sent a message is due; the paced mode measures from then on.
    pub due_ms: usize,
    /// If not 0, messages are due at the next multiple of it, which TIMER_DELIVER_MS says.
    pub due_step_ms: usize,
    /// A property of every message that is sent by itself: NAME and VALUE.
    pub property: Option<(String, String)>,
    /// Whether members of batches have properties to filter by, see `frames::MARKS`.
    pub marked: bool,
    /// Whether consumers that wait do so by pops.
    pub pops: bool,
    /// Whether pops are in order, each connection's of one queue.
    pub order: bool,
    /// An SQL92 expression to pull by, instead of all messages.
    pub expression: Option<String>,
    /// The certificate (DER) of servers to which connections are encrypted.
    pub trusted: Option<PathBuf>,
    pub messages: u64,
    pub pids: Vec<u32>,
    pub plan: Plan,
}

impl Options {
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mode = Mode::of(arguments.first()).ok_or_else(|| {
            let names: Vec<&str> = MODES.iter().map(|(name, _)| *name).collect();
            format!("the first argument is one of {}", names.join(", "))
        })?;
        let mut options = Options::of(mode);
        let (mut lead, mut window, mut warm_up) = (1.0, 5.0, false);
        let (mut step, mut least, mut most, mut within) = (2.0, 0.0, 60.0, 5.0);
        let connections_max = if mode == Mode::GrpcIdle { IDLE_MAX } else { CONNECTIONS_MAX };
        let mut rest = arguments[1..].iter();
        while let Some(key) = rest.next() {
            if key == "--warm-up" {
                warm_up = true;
                continue;
            }
            let value = rest.next().ok_or_else(|| format!("{key} needs a value"))?;
            match key.as_str() {
                "--broker" => options.brokers.push(broker(value)?),
                "--grpc" => options.grpc = Some(address(key, value)?),
                "--topic" => options.topic = plain(key, value)?,
                "--connections" => options.connections = count(key, value, connections_max)?,
                "--depth" => options.depth = count(key, value, DEPTH_MAX)?,
                "--body-bytes" => options.body_bytes = count(key, value, BODY_BYTES_MAX)?,
                "--batch" => options.batch = count(key, value, BATCH_MAX)?,
                "--queues" => options.queues = count(key, value, QUEUES_MAX)?,
                "--rate" => options.rate = count(key, value, RATE_MAX)?,
                "--period-ms" => options.period_ms = count(key, value, PERIOD_MS_MAX)?,
                "--due-ms" => options.due_ms = count(key, value, DUE_MS_MAX)?,
                "--due-step-ms" => options.due_step_ms = count(key, value, DUE_MS_MAX)?,
                "--property" => options.property = Some(property(key, value)?),
                "--marked" => options.marked = number(key, value)?,
                "--pops" => options.pops = number(key, value)?,
                "--order" => options.order = number(key, value)?,
                "--expression" => options.expression = Some(expression(key, value)?),
                "--trust" => options.trusted = Some(PathBuf::from(value)),
                "--messages" => options.messages = number(key, value)?,
                "--pid" => options.pids.push(number(key, value)?),
                "--seconds" => window = seconds(key, value)?,
                "--lead-seconds" => lead = seconds(key, value)?,
                "--window-seconds" => step = seconds(key, value)?,
                "--least-seconds" => least = seconds(key, value)?,
                "--most-seconds" => most = seconds(key, value)?,
                "--within-percent" => within = number(key, value)?,
                _ => return Err(format!("unknown option {key}")),
            }
        }
        if options.brokers.is_empty() {
            return Err("at least one --broker NAME=HOST:PORT is needed".into());
        }
        options.plan = if warm_up {
            Plan::WarmUp(WarmUp {
                window: Duration::from_secs_f64(step),
                least: Duration::from_secs_f64(least),
                most: Duration::from_secs_f64(most),
                within: within / 100.0,
            })
        } else {
            let (lead, window) = (Duration::from_secs_f64(lead), Duration::from_secs_f64(window));
            Plan::Measure { lead, window }
        };
        Ok(options)
    }

    fn of(mode: Mode) -> Options {
        Options {
            mode,
            brokers: Vec::new(),
            grpc: None,
            topic: "load".into(),
            connections: 4,
            depth: 32,
            body_bytes: 128,
            batch: 32,
            queues: 4,
            rate: 1000,
            period_ms: 10_000,
            due_ms: 0,
            due_step_ms: 0,
            property: None,
            marked: false,
            pops: false,
            order: false,
            expression: None,
            trusted: None,
            messages: u64::MAX,
            pids: Vec::new(),
            plan: Plan::Measure { lead: Duration::ZERO, window: Duration::ZERO },
        }
    }

    /// When a message that was sent then is due, in the same unit.
    pub fn due_us(&self, sent_us: u64) -> u64 {
        let due_us = sent_us + self.due_ms as u64 * 1000;
        let step_us = self.due_step_ms as u64 * 1000;
        if step_us == 0 {
            return due_us;
        }
        (due_us + step_us - 1) / step_us * step_us
    }

    pub fn grpc_address(&self) -> io::Result<SocketAddr> {
        self.grpc.ok_or_else(|| failed("--grpc HOST:PORT is needed"))
    }

    /// One for each connection that sends or pulls, and one for each queue that is waited for.
    /// Idle connections share some.
    pub fn workers(&self) -> usize {
        if self.mode == Mode::GrpcIdle {
            return self.connections.min(IDLE_THREADS);
        }
        let waits = [Mode::Push, Mode::GrpcPush].contains(&self.mode);
        self.connections + if waits { self.queues } else { 0 }
    }
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{key} {value}: not a number"))
}

fn count(key: &str, value: &str, most: usize) -> Result<usize, String> {
    let given: usize = number(key, value)?;
    if given == 0 || given > most {
        return Err(format!("{key} {value}: must be from 1 to {most}"));
    }
    Ok(given)
}

fn seconds(key: &str, value: &str) -> Result<f64, String> {
    let given: f64 = number(key, value)?;
    if !(0.0..=SECONDS_MAX).contains(&given) {
        return Err(format!("{key} {value}: must be from 0 to {SECONDS_MAX}"));
    }
    Ok(given)
}

/// Names go into JSON headers as they are, so nothing that needs an escape is let in.
fn plain(key: &str, value: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.%|".contains(c);
    if value.is_empty() || !value.chars().all(allowed) {
        return Err(format!("{key} {value}: letters, digits, - _ . % | only"));
    }
    Ok(value.into())
}

fn property(key: &str, value: &str) -> Result<(String, String), String> {
    let (name, value) =
        value.split_once('=').ok_or_else(|| format!("{key} {value}: not NAME=VALUE"))?;
    Ok((plain(key, name)?, plain(key, value)?))
}

/// An expression goes into JSON headers as it is, too.
fn expression(key: &str, value: &str) -> Result<String, String> {
    if value.is_empty() || value.chars().any(|c| c.is_control() || "\"\\".contains(c)) {
        return Err(format!("{key} {value}: no control characters, \" or \\"));
    }
    Ok(value.into())
}

fn broker(value: &str) -> Result<Broker, String> {
    let (name, place) =
        value.split_once('=').ok_or_else(|| format!("--broker {value}: not NAME=HOST:PORT"))?;
    Ok(Broker { name: plain("--broker", name)?, address: address("--broker", place)? })
}

fn address(key: &str, value: &str) -> Result<SocketAddr, String> {
    let found = value
        .to_socket_addrs()
        .ok()
        .and_then(|mut found| found.next())
        .ok_or_else(|| format!("{key} {value}: not an address"))?;
    if !found.ip().is_loopback() {
        return Err(format!("{key} {value}: only loopback addresses are loaded"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        Options::parse(&words)
    }

    #[test]
    fn reads_a_whole_line() {
        let options = parse(
            "batch --broker a=127.0.0.1:1 --broker b=127.0.0.1:2 --depth 8 --pid 7 --trust x",
        )
        .unwrap();
        assert_eq!(options.mode, Mode::Batch);
        assert_eq!(options.brokers[1].name, "b");
        assert_eq!((options.depth, options.pids), (8, vec![7]));
        assert_eq!(options.trusted, Some(PathBuf::from("x")));
    }

    #[test]
    fn reads_what_only_some_modes_have() {
        let options = parse(
            "push --broker a=127.0.0.1:1 --rate 5000 --due-ms 1000 --property DELAY=1 --queues 2",
        )
        .unwrap();
        assert_eq!((options.rate, options.due_ms), (5000, 1000));
        assert_eq!(options.property, Some(("DELAY".into(), "1".into())));
        assert_eq!(options.workers(), options.connections + 2);
        assert_eq!(options.due_us(2_500_000), 3_500_000);
        let options =
            parse("push --broker a=127.0.0.1:1 --due-ms 1000 --due-step-ms 1000").unwrap();
        assert_eq!((options.due_us(2_500_000), options.due_us(2_000_000)), (4_000_000, 3_000_000));
        assert!(parse("batch --broker a=127.0.0.1:1 --marked true").unwrap().marked);
        let options = parse("pop --broker a=127.0.0.1:1 --order true --pops true").unwrap();
        assert!(options.mode == Mode::Pop && options.order && options.pops);
        let options = parse("pull --broker a=127.0.0.1:1 --expression price>'5'").unwrap();
        assert_eq!((options.expression.as_deref(), options.workers()), (Some("price>'5'"), 4));
        let options =
            parse("grpc-idle --broker a=127.0.0.1:1 --connections 10000 --period-ms 500").unwrap();
        assert_eq!((options.connections, options.period_ms), (10_000, 500));
        assert_eq!(options.workers(), IDLE_THREADS);
    }

    #[test]
    fn refuses_other_machines_and_nonsense() {
        assert!(parse("fly --broker a=127.0.0.1:1").unwrap_err().contains("send-back"));
        assert!(parse("pull --broker a=127.0.0.1:1 --expression \"a\"").is_err());
        assert!(parse("push --broker a=127.0.0.1:1 --property DELAY").is_err());
        assert!(parse("send --broker a=192.0.2.1:10911").unwrap_err().contains("loopback"));
        assert!(parse("send").unwrap_err().contains("--broker"));
        assert!(parse("send --broker a=127.0.0.1:1 --depth 0").is_err());
        assert!(parse("send --broker a=127.0.0.1:1 --connections 10000").is_err());
        assert!(parse("send --broker a=127.0.0.1:1 --topic a\"b").is_err());
        assert!(parse("send --broker a=127.0.0.1:1 --seconds 6000").is_err());
    }
}
