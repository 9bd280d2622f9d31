//! Idle clients by gRPC: each has a connection, an open stream of telemetry, and heartbeats.
//!
//! Half of them are push consumers of one group, the others producers. A thread serves many.
use std::io;
use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use crate::frames;
use crate::grpc::{all, answers, begin, bytes, number, resource, seconds, OK, TIMEOUT};
use crate::http2::{Http2, Method};
use crate::options::Options;
use crate::worker::{failed, Worker, SUCCESS};

static HEARTBEAT: Method =
    Method { path: "/apache.rocketmq.v2.MessagingService/Heartbeat", timeout: TIMEOUT };
const PRODUCER: u64 = 1;
const PUSH_CONSUMER: u64 = 2;
const JAVA: u64 = 1;
/// Enough for answers to settings; a buffer grows if it must.
const BUFFER_BYTES: usize = 4 << 10;
const GROUP: &str = "load_idle";

impl Worker {
    /// Connects this worker's part of the clients; each has its settings before the next begins.
    pub(crate) fn open_clients(&mut self) -> io::Result<Vec<Http2>> {
        let address = self.options.grpc_address()?;
        self.connection.write(&frames::group_config(GROUP))?;
        if self.connection.answer()?.code != SUCCESS {
            return Err(failed("the broker does not make the group"));
        }
        let numbers = (self.number..self.options.connections).step_by(self.options.workers());
        let mut clients = Vec::new();
        for number in numbers {
            let id = format!("idle-{}-{number}", std::process::id());
            let mut http2 = Http2::open(address, id, BUFFER_BYTES)?;
            begin(&mut http2, &settings(&self.options, is_consumer(number)))?;
            clients.push(http2);
        }
        Ok(clients)
    }

    /// One heartbeat of each client in a period, evenly spread.
    pub(crate) fn idle(&mut self) -> io::Result<()> {
        let mut clients = mem::take(&mut self.clients);
        let period = Duration::from_millis(self.options.period_ms as u64);
        let pause = period / clients.len().max(1) as u32;
        let requests = [heartbeat(PRODUCER), heartbeat(PUSH_CONSUMER)];
        let mut due = Instant::now();
        loop {
            for (turn, http2) in clients.iter_mut().enumerate() {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                if self.shared.stopped() {
                    return Ok(());
                }
                due += pause;
                let start = Instant::now();
                let number = self.number + turn * self.options.workers();
                http2.call(&HEARTBEAT, &requests[usize::from(is_consumer(number))], true)?;
                http2.flush()?;
                for answer in answers(http2, 1)? {
                    if self.check(&answer)? == Some(OK) {
                        self.finish_round(start, 1);
                    }
                }
            }
        }
    }
}

fn is_consumer(number: usize) -> bool {
    number % 2 == 1
}

fn heartbeat(kind: u64) -> Vec<u8> {
    let mut request = Vec::new();
    if kind == PUSH_CONSUMER {
        bytes(&mut request, 1, &resource(GROUP));
    }
    number(&mut request, 2, kind);
    request
}

/// What the official Java client says of itself.
fn settings(options: &Options, consumes: bool) -> Vec<u8> {
    let (mut address, mut endpoints) = (Vec::new(), Vec::new());
    bytes(&mut address, 1, b"127.0.0.1");
    number(&mut address, 2, options.grpc.map_or(0, |it| u64::from(it.port())));
    number(&mut endpoints, 1, 1); // IPv4
    bytes(&mut endpoints, 2, &address);
    let mut agent = Vec::new();
    number(&mut agent, 1, JAVA);
    for (field, text) in [(2, "5.2.0"), (3, "Linux 6.1"), (4, "client.example.org")] {
        bytes(&mut agent, field, text.as_bytes());
    }
    let (mut topic, mut settings) = (Vec::new(), Vec::new());
    number(&mut settings, 1, if consumes { PUSH_CONSUMER } else { PRODUCER });
    bytes(&mut settings, 2, &endpoints);
    bytes(&mut settings, 4, &seconds(3));
    bytes(&mut topic, 1, &resource(&options.topic));
    if consumes {
        let mut subscription = Vec::new();
        bytes(&mut topic, 2, &all());
        bytes(&mut subscription, 1, &resource(GROUP));
        bytes(&mut subscription, 2, &topic);
        bytes(&mut settings, 6, &subscription);
    } else {
        bytes(&mut settings, 5, &topic);
    }
    bytes(&mut settings, 7, &agent);
    let mut command = Vec::new();
    bytes(&mut command, 2, &settings);
    command
}
