//! The line of JSON that says what was measured.
use std::time::{Duration, Instant};

use crate::cpu;
use crate::options::Options;
use crate::worker::Shared;

/// The counters at one moment.
pub struct Sample {
    at: Instant,
    messages: u64,
    server_cpu_s: f64,
    own_cpu_s: f64,
}

impl Sample {
    pub fn take(options: &Options, shared: &Shared) -> Sample {
        let own_cpu_s = cpu::seconds(&[std::process::id()]);
        let server_cpu_s = cpu::seconds(&options.pids);
        Sample { at: Instant::now(), messages: shared.messages(), server_cpu_s, own_cpu_s }
    }
}

/// What a run found.
pub enum Outcome {
    Measured { before: Sample, after: Sample },
    Warm { stable: bool, time: Duration, rates: Vec<f64> },
}

pub fn line(options: &Options, shared: &Shared, outcome: &Outcome) -> String {
    let found = match outcome {
        Outcome::Measured { before, after } => measured(shared, before, after),
        Outcome::Warm { stable, time, rates } => warm(shared, *stable, *time, rates),
    };
    let (mode, refused) = (options.mode.name(), refused(shared));
    format!("{{\"mode\":\"{mode}\",{found},\"refused\":{refused}}}")
}

fn measured(shared: &Shared, before: &Sample, after: &Sample) -> String {
    let seconds = (after.at - before.at).as_secs_f64();
    let messages = after.messages - before.messages;
    let server_cpu_s = after.server_cpu_s - before.server_cpu_s;
    let own_cores = (after.own_cpu_s - before.own_cpu_s) / seconds;
    let (p50, p99, highest) = quantiles(shared);
    format!(
        "\"seconds\":{seconds:.3},\"messages\":{messages},\"messages_per_s\":{:.0},\
         \"round_ms_p50\":{p50:.3},\"round_ms_p99\":{p99:.3},\"round_ms_max\":{highest:.3},\
         \"server_cpu_us_per_message\":{:.3},\"server_cores\":{:.3},\
         \"generator_cores\":{own_cores:.3}",
        messages as f64 / seconds,
        server_cpu_s * 1e6 / messages.max(1) as f64,
        server_cpu_s / seconds,
    )
}

fn warm(shared: &Shared, stable: bool, time: Duration, rates: &[f64]) -> String {
    let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    format!(
        "\"stable\":{stable},\"seconds\":{:.1},\"messages\":{},\"rates\":[{}]",
        time.as_secs_f64(),
        shared.messages(),
        rates.join(","),
    )
}

fn quantiles(shared: &Shared) -> (f64, f64, f64) {
    shared.with_results(|results| {
        let milliseconds = |micros: u64| micros as f64 / 1000.0;
        let rounds = &results.rounds;
        (
            milliseconds(rounds.quantile(0.5)),
            milliseconds(rounds.quantile(0.99)),
            milliseconds(rounds.highest()),
        )
    })
}

fn refused(shared: &Shared) -> String {
    shared.with_results(|results| {
        let counts: Vec<String> =
            results.refused.iter().map(|(reason, count)| format!("\"{reason}\":{count}")).collect();
        format!("{{{}}}", counts.join(","))
    })
}
