//! Consuming by POP: the broker chooses the messages, and each is acknowledged by itself.
use std::io;
use std::time::Instant;

use crate::connection::{word, Answer};
use crate::frames::{self, Handle, Wait};
use crate::worker::{failed, Worker, SUCCESS};

/// POLLING_FULL, POLLING_TIMEOUT, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY: nothing, now.
const NOTHING: [i64; 4] = [209, 210, 19, 20];
/// A pop may find nothing while others hold the queues; after so many in a row there is no more.
const EMPTY_POPS: u32 = 200;

impl Worker {
    /// Pops and acknowledges all messages of the topic, as a new group again and again.
    pub(crate) fn pop(&mut self) -> io::Result<()> {
        let (mut turn, mut empty) = (0, 0);
        while !self.shared.stopped() {
            let group = format!("load_popper_{}_{turn}", std::process::id());
            let start = Instant::now();
            let count = self.pop_once(&group, Wait::No, |_| ())?;
            if count > 0 {
                self.finish_round(start, count);
                empty = 0;
                continue;
            }
            empty += 1;
            if empty == EMPTY_POPS {
                (turn, empty) = (turn + 1, 0);
            }
        }
        Ok(())
    }

    /// Waits for messages by pops; the time of each is from when it was due.
    pub(crate) fn consume_by_pops(&mut self) -> io::Result<()> {
        let group = format!("load_waiter_{}", std::process::id());
        let mut times = Vec::new();
        while !self.shared.stopped() {
            let options = self.options.clone();
            times.clear();
            self.pop_once(&group, Wait::Yes, |record| {
                let due_us = frames::key_of(record).map(|stamp| options.due_us(stamp));
                times.extend(due_us.map(|due_us| frames::now_us().saturating_sub(due_us)));
            })?;
            for &micros in &times {
                self.finish(micros, 1);
            }
        }
        Ok(())
    }

    /// Pops, shows each record, and acknowledges all; gives how many were acknowledged.
    fn pop_once(
        &mut self,
        group: &str,
        wait: Wait,
        mut show: impl FnMut(&[u8]),
    ) -> io::Result<u64> {
        let queue = self.number % self.options.queues;
        let request = frames::pop(&self.options, group, queue, wait);
        self.connection.write(&request)?;
        let answer = self.connection.answer()?;
        if NOTHING.contains(&answer.code) {
            return Ok(0);
        }
        if answer.code != SUCCESS {
            self.shared.refuse(answer.code, answer.header);
            return Err(failed(format!("a pop: code {}", answer.code)));
        }
        let popped = popped(&answer).ok_or_else(|| failed("a popped answer without its times"))?;
        let (mut handles, mut records) = (Vec::new(), 0);
        let whole = answer.each_record(|record| {
            show(record);
            records += 1;
            handles.extend(popped.handle(&self.broker, place(record)));
        });
        if !whole || handles.len() != records {
            return Err(failed("a torn record, or one of a queue that the answer does not name"));
        }
        let mut acks = Vec::new();
        for (opaque, handle) in handles.iter().enumerate() {
            acks.extend(frames::ack(&self.options.topic, group, handle, opaque as u64));
        }
        self.ask(&acks, 0, records as u64, |_| ())
    }
}

/// What the header of an answer says of all its messages.
struct Popped {
    time_ms: u64,
    invisible_ms: u64,
    revive_queue: u64,
    /// Queues, and the first offset of each.
    starts: Vec<(u64, u64)>,
}

impl Popped {
    /// What a message is acknowledged by; None if its queue is not named.
    fn handle(&self, broker: &str, (queue, offset): (u64, u64)) -> Option<Handle> {
        let start = self.starts.iter().find(|(named, _)| *named == queue)?.1;
        let Popped { time_ms, invisible_ms, revive_queue, .. } = self;
        let text =
            format!("{start} {time_ms} {invisible_ms} {revive_queue} 0 {broker} {queue} {offset}");
        Some(Handle { queue, offset, text })
    }
}

fn popped(answer: &Answer<'_>) -> Option<Popped> {
    Some(Popped {
        time_ms: answer.field(b"\"popTime\":")?,
        invisible_ms: answer.field(b"\"invisibleTime\":")?,
        revive_queue: answer.field(b"\"reviveQid\":")?,
        starts: starts(answer.text(b"\"startOffsetInfo\":\"")?),
    })
}

/// `0 3 100;0 1 64`: of a topic itself (0) and a queue, the first offset of a pop.
fn starts(text: &str) -> Vec<(u64, u64)> {
    let parts = text.split(';').filter_map(|part| {
        let mut words = part.split(' ').skip(1).map(str::parse);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    });
    parts.collect()
}

/// Queue and queue offset of a stored message.
fn place(record: &[u8]) -> (u64, u64) {
    let queue_offset = (word(record, 20) as u64) << 32 | word(record, 24) as u64;
    (word(record, 12) as u64, queue_offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_where_each_queue_starts() {
        assert_eq!(starts("0 3 100;0 1 64"), vec![(3, 100), (1, 64)]);
        assert_eq!(starts(""), vec![]);
    }

    #[test]
    fn makes_the_handle_of_a_message() {
        let starts = vec![(3, 100)];
        let popped = Popped { time_ms: 7, invisible_ms: 60_000, revive_queue: 2, starts };
        let handle = popped.handle("broker-a", (3, 101)).unwrap();
        assert_eq!(handle.text, "100 7 60000 2 0 broker-a 3 101");
        assert!(popped.handle("broker-a", (4, 101)).is_none());
    }

    #[test]
    fn reads_the_place_of_a_record() {
        let mut record = vec![0; 40];
        (record[15], record[26], record[27]) = (3, 1, 44);
        assert_eq!(place(&record), (3, 300));
    }
}
