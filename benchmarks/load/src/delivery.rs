//! What delivery adds to sends and pulls: transactions, messages sent back, consumers that wait.
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::connection::place_of;
use crate::frames::{self, Round, Wait};
use crate::worker::{failed, Worker, END_OF_QUEUE, SUCCESS};

/// Messages are sent back with the longest delay: none of them comes due while others are measured.
const BACK_LEVEL: u32 = 18;

impl Worker {
    /// DEPTH halves at once, then the commits of all of them; a message counts when both are
    /// answered. Clients write commits without asking for an answer; here nothing else would tell
    /// that the broker has done it.
    pub(crate) fn transact(&mut self) -> io::Result<()> {
        let mut round = Round::half(&self.options, self.number, &self.broker);
        let depth = self.options.depth as u64;
        let topic = self.options.topic.clone();
        let mut halves: Vec<Option<(u64, u64)>> = Vec::new();
        let mut commits = Vec::new();
        while !self.shared.stopped() {
            let start = Instant::now();
            let (bytes, first) = round.next();
            halves.clear();
            self.ask(bytes, first, depth, |answer| {
                let queue_offset = answer.field(b"\"queueOffset\":");
                halves.push(answer.physical_offset().zip(queue_offset));
            })?;
            commits.clear();
            for (opaque, half) in halves.iter().enumerate() {
                let half = half.ok_or_else(|| failed("an acknowledged half without its place"))?;
                commits.extend_from_slice(&frames::commit(&topic, half, opaque as u64));
            }
            let committed = self.ask(&commits, 0, halves.len() as u64, |_| ())?;
            self.finish_round(start, committed);
        }
        Ok(())
    }

    /// Sends all messages of a queue back, DEPTH at once, again and again.
    ///
    /// Each run is a group of its own: who sends the same message back for the same group within
    /// seconds may be taken for one that had no answer.
    pub(crate) fn send_back(&mut self) -> io::Result<()> {
        let group = format!("load_back_{}_{}", frames::now_us() / 1_000_000, self.number);
        let topic = self.options.topic.clone();
        let depth = self.options.depth;
        let places = std::mem::take(&mut self.places);
        let mut requests = Vec::new();
        let mut at = 0;
        while !self.shared.stopped() {
            requests.clear();
            for opaque in 0..depth {
                let place = places[(at + opaque) % places.len()];
                let request = frames::send_back(&topic, &group, place, BACK_LEVEL, opaque as u64);
                requests.extend_from_slice(&request);
            }
            at += depth;
            let start = Instant::now();
            let accepted = self.ask(&requests, 0, depth as u64, |_| ())?;
            self.finish_round(start, accepted);
        }
        Ok(())
    }

    /// Pulls a whole queue, DEPTH pulls at once; gives the physical offsets of its messages.
    pub(crate) fn find_places(&mut self) -> io::Result<Vec<u64>> {
        let queue = self.number % self.options.queues;
        self.connection.write(&frames::max_offset(&self.options.topic, queue, 0))?;
        let end = self.connection.answer()?.field(b"\"offset\":").unwrap_or(0);
        let (mut places, mut requests) = (Vec::new(), Vec::new());
        let mut offset = 0;
        while offset < end {
            requests.clear();
            let mut count = 0;
            while offset < end && count < self.options.depth as u64 {
                let (options, broker) = (&self.options, &self.broker);
                requests.extend(frames::pull(options, broker, queue, offset, count, Wait::No));
                offset += self.options.batch as u64;
                count += 1;
            }
            self.ask(&requests, 0, count, |answer| {
                answer.each_record(|record| places.extend(place_of(record)));
            })?;
        }
        if places.is_empty() {
            return Err(failed(format!("queue {queue} has no messages to send back")));
        }
        Ok(places)
    }

    /// Sends this connection's share of the rate, one message after the other.
    ///
    /// A message carries in its id when it was sent. That is when it was to be sent if the answer
    /// to the one before came later than that: what a slow broker holds up counts as its delay.
    pub(crate) fn produce(&mut self) -> io::Result<()> {
        let mut round = Round::send(&self.options, self.number, &self.broker);
        let connections = self.options.connections as u32;
        let period = Duration::from_secs_f64(1.0 / self.options.rate as f64);
        let mut due = Instant::now() + period * self.number as u32;
        while !self.shared.stopped() {
            let late = Instant::now().saturating_duration_since(due);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent_us = frames::now_us() - late.as_micros() as u64;
            round.sent_at(sent_us, self.options.due_us(sent_us));
            let (bytes, first) = round.next();
            self.ask(bytes, first, 1, |_| ())?;
            due += period * connections;
        }
        Ok(())
    }

    /// Waits for the messages of a queue as a push consumer does, the next pull right after an
    /// answer; the time of each is from when it was due.
    pub(crate) fn consume(&mut self, queue: usize) -> io::Result<()> {
        self.connection.write(&frames::max_offset(&self.options.topic, queue, 0))?;
        let answer = self.connection.answer()?;
        let mut offset = answer.field(b"\"offset\":").unwrap_or(0);
        let mut opaque = 0;
        while !self.shared.stopped() {
            opaque += 1;
            let request =
                frames::pull(&self.options, &self.broker, queue, offset, opaque, Wait::Yes);
            self.connection.write(&request)?;
            let answer = self.connection.answer()?;
            let now = frames::now_us();
            if END_OF_QUEUE.contains(&answer.code) {
                continue;
            }
            let mut sent = Vec::new();
            let whole = answer.each_record(|record| sent.push(frames::key_of(record)));
            if answer.code != SUCCESS || !whole {
                return Err(failed(format!("queue {queue} at {offset}: code {}", answer.code)));
            }
            offset += sent.len() as u64;
            for stamp in sent.into_iter().flatten() {
                self.finish(now.saturating_sub(self.options.due_us(stamp)), 1);
            }
        }
        Ok(())
    }
}
