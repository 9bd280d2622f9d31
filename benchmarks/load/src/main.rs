//! A raw load generator for the remoting protocol, and for gRPC.
//!
//! It writes frames with JSON headers, the same fields an official Java client sends, over plain
//! or encrypted sockets, so that what it measures is the server and not a client library. One
//! thread serves one connection: it writes DEPTH requests at once, reads DEPTH answers, and times
//! that round. Every request is a template made once, of which only the digits that differ are
//! rewritten (`frames`), so that the generator takes as little as possible of the cores the server
//! needs.
//!
//! The result is one line of JSON on stdout; what went wrong is one line on stderr and exit 1.
//! It talks to loopback addresses only and always ends within the times it was given.
mod connection;
mod cpu;
mod delivery;
mod frames;
mod grpc;
mod histogram;
mod http2;
mod idle;
mod options;
mod pops;
mod report;
mod stream;
mod warmup;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use options::{Options, Plan};
use report::{Outcome, Sample};
use worker::{Shared, Worker};

/// How often the main thread looks at the counters; also the error of a `--messages` stop.
const POLL: Duration = Duration::from_millis(5);
/// How long the workers may take for their last round before the generator gives up on them.
const LAST_ROUND_MAX: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match Options::parse(&arguments).and_then(|options| run(&options)) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("firearrow-load: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<String, String> {
    let shared = Arc::new(Shared::default());
    let mut threads = Vec::with_capacity(options.workers());
    for number in 0..options.workers() {
        let mut worker = Worker::connect(number, options, Arc::clone(&shared))?;
        threads.push(thread::spawn(move || worker.run()));
    }
    let outcome = match options.plan {
        Plan::Measure { lead, window } => measure(options, &shared, lead, window),
        Plan::WarmUp(limits) => warmup::run(&shared, limits),
    };
    join(&shared, &threads)?;
    shared.failure().map_or_else(|| Ok(report::line(options, &shared, &outcome)), Err)
}

/// Runs for `lead` unmeasured and then for `window`, or until the wanted number of messages.
fn measure(options: &Options, shared: &Shared, lead: Duration, window: Duration) -> Outcome {
    wait(shared, lead, options.messages);
    let before = Sample::take(options, shared);
    shared.begin_measuring();
    wait(shared, window, options.messages);
    Outcome::Measured { before, after: Sample::take(options, shared) }
}

/// Ends the workers; only then are their times complete.
fn join(shared: &Shared, threads: &[JoinHandle<()>]) -> Result<(), String> {
    shared.stop();
    let end = Instant::now() + LAST_ROUND_MAX;
    while threads.iter().any(|thread| !thread.is_finished()) {
        if Instant::now() > end {
            return Err("a connection did not finish its last round".into());
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Sleeps until the time is over, a worker failed, or `messages` were acknowledged.
pub(crate) fn wait(shared: &Shared, time: Duration, messages: u64) {
    let end = Instant::now() + time;
    while Instant::now() < end && !shared.stopped() && shared.messages() < messages {
        thread::sleep(POLL.min(end.saturating_duration_since(Instant::now())));
    }
}
