//! One connection's loop, and what all loops share.
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::connection::{Answer, Connection};
use crate::frames::{self, Round, Wait};
use crate::histogram::Histogram;
use crate::http2::Http2;
use crate::options::{Mode, Options};

pub(crate) const SUCCESS: i64 = 0;
/// PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, PULL_OFFSET_MOVED: the end of what is stored.
pub(crate) const END_OF_QUEUE: [i64; 3] = [19, 20, 21];

#[derive(Default)]
pub struct Shared {
    measuring: AtomicBool,
    stopped: AtomicBool,
    messages: AtomicU64,
    results: Mutex<Results>,
}

/// What is only looked at after the run (times) or is rare (refusals, failures).
#[derive(Default)]
pub struct Results {
    pub rounds: Histogram,
    /// By code, or by the name of a reset.
    pub refused: BTreeMap<String, u64>,
    failure: Option<String>,
}

impl Shared {
    pub fn begin_measuring(&self) {
        self.measuring.store(true, Relaxed);
    }

    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    pub fn stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Messages acknowledged or pulled so far.
    pub fn messages(&self) -> u64 {
        self.messages.load(Relaxed)
    }

    pub fn with_results<T>(&self, look: impl FnOnce(&mut Results) -> T) -> T {
        // A worker that panicked while it held the lock has left counters at worst one short.
        let mut results = self.results.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        look(&mut results)
    }

    pub fn failure(&self) -> Option<String> {
        self.with_results(|results| results.failure.clone())
    }

    pub(crate) fn refuse(&self, reason: impl ToString, header: &[u8]) {
        self.with_results(|results| {
            let count = results.refused.entry(reason.to_string()).or_default();
            *count += 1;
            if *count == 1 {
                eprintln!("firearrow-load: refused: {}", String::from_utf8_lossy(header));
            }
        });
    }
}

pub struct Worker {
    pub(crate) number: usize,
    pub(crate) options: Options,
    pub(crate) broker: String,
    pub(crate) connection: Connection,
    pub(crate) shared: Arc<Shared>,
    /// Physical offsets of the messages that it sends back.
    pub(crate) places: Vec<u64>,
    /// Its idle clients.
    pub(crate) clients: Vec<Http2>,
    rounds: Histogram,
}

impl Worker {
    /// Connects; the connections take the brokers in turn, so that all of them get load.
    pub fn connect(
        number: usize,
        options: &Options,
        shared: Arc<Shared>,
    ) -> Result<Worker, String> {
        let broker = &options.brokers[number % options.brokers.len()];
        let connection = Connection::open(broker.address, options.trusted.as_deref())
            .map_err(|error| format!("{} at {}: {error}", broker.name, broker.address))?;
        let (options, broker) = (options.clone(), broker.name.clone());
        let (places, clients, rounds) = (Vec::new(), Vec::new(), Histogram::default());
        let mut worker =
            Worker { number, options, broker, connection, shared, places, clients, rounds };
        if worker.options.mode == Mode::SendBack {
            worker.places = worker.find_places().map_err(|error| error.to_string())?;
        }
        if worker.options.mode == Mode::GrpcIdle {
            worker.clients = worker.open_clients().map_err(|error| error.to_string())?;
        }
        Ok(worker)
    }

    pub fn run(&mut self) {
        let ended = match self.options.mode {
            Mode::Send => {
                let round = Round::send(&self.options, self.number, &self.broker);
                self.send(round, 1)
            }
            Mode::Batch => {
                let round = Round::batch(&self.options, self.number, &self.broker);
                self.send(round, self.options.batch as u64)
            }
            Mode::Pull => self.pull(),
            Mode::Transaction => self.transact(),
            Mode::SendBack => self.send_back(),
            Mode::Push | Mode::GrpcPush if self.number < self.options.connections => self.produce(),
            Mode::GrpcSend => self.send_by_grpc(),
            Mode::GrpcReceive => self.receive_by_grpc(false),
            Mode::GrpcPush => self.receive_by_grpc(true),
            Mode::GrpcIdle => self.idle(),
            Mode::Pop => self.pop(),
            Mode::Push if self.options.pops => self.consume_by_pops(),
            Mode::Push => self.consume(self.number - self.options.connections),
        };
        self.shared.with_results(|results| {
            results.rounds.merge(&self.rounds);
            if let Err(error) = &ended {
                let text = format!("connection {} to {}: {error}", self.number, self.broker);
                results.failure.get_or_insert(text);
            }
        });
        if ended.is_err() {
            self.shared.stop();
        }
    }

    fn send(&mut self, mut round: Round, messages_per_request: u64) -> io::Result<()> {
        let depth = self.options.depth as u64;
        while !self.shared.stopped() {
            let (bytes, first) = round.next();
            let start = Instant::now();
            let accepted = self.ask(bytes, first, depth, |_| ())?;
            self.finish_round(start, accepted * messages_per_request);
        }
        Ok(())
    }

    /// Reads one queue from its first message to its last, again and again.
    fn pull(&mut self) -> io::Result<()> {
        let broker_turn = self.number / self.options.brokers.len();
        let queue = broker_turn % self.options.queues;
        let (mut offset, mut opaque) = (0, 0);
        while !self.shared.stopped() {
            opaque += 1;
            let request =
                frames::pull(&self.options, &self.broker, queue, offset, opaque, Wait::No);
            let start = Instant::now();
            self.connection.write(&request)?;
            let answer = self.connection.answer()?;
            if answer.opaque != opaque {
                return Err(failed("an answer to another request"));
            }
            if END_OF_QUEUE.contains(&answer.code) && offset > 0 {
                offset = 0;
                continue;
            }
            if answer.code != SUCCESS {
                self.shared.refuse(answer.code, answer.header);
                let text = format!("queue {queue} at {offset}: code {}", answer.code);
                return Err(failed(text));
            }
            let count = answer.records().ok_or_else(|| failed("a torn record"))?;
            let next = answer.field(b"\"nextBeginOffset\":").unwrap_or(0);
            // A filter passes over some.
            let passed = next.wrapping_sub(offset + count);
            if passed > 0 && (self.options.expression.is_none() || next < offset + count) {
                return Err(failed("nextBeginOffset does not follow what was pulled"));
            }
            offset = next;
            self.finish_round(start, count);
        }
        Ok(())
    }

    pub(crate) fn finish_round(&mut self, start: Instant, messages: u64) {
        self.finish(start.elapsed().as_micros() as u64, messages);
    }

    /// Counts messages, and the time that they took.
    pub(crate) fn finish(&mut self, micros: u64, messages: u64) {
        self.shared.messages.fetch_add(messages, Relaxed);
        if self.shared.measuring.load(Relaxed) {
            self.rounds.add(micros);
        }
    }

    /// Writes requests, of which `first` is the first opaque, and shows each answer that grants
    /// one; gives how many did. Answers may come in any order, but each request has exactly one.
    pub(crate) fn ask(
        &mut self,
        requests: &[u8],
        first: u64,
        count: u64,
        mut granted: impl FnMut(&Answer<'_>),
    ) -> io::Result<u64> {
        self.connection.write(requests)?;
        let (mut accepted, mut places) = (0, 0);
        for _ in 0..count {
            let answer = self.connection.answer()?;
            places += answer.opaque.wrapping_sub(first);
            if answer.code == SUCCESS {
                accepted += 1;
                granted(&answer);
            } else {
                self.shared.refuse(answer.code, answer.header);
            }
        }
        if places != count * count.saturating_sub(1) / 2 {
            return Err(failed("the answers' opaques are not those of the requests"));
        }
        Ok(accepted)
    }
}

pub(crate) fn failed(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::Other, reason.into())
}
