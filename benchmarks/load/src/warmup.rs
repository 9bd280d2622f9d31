//! Load until the rate is stable.
use std::time::{Duration, Instant};

use crate::options::WarmUp;
use crate::report::Outcome;
use crate::wait;
use crate::worker::Shared;

/// So many windows in a row must agree.
const WINDOWS: usize = 3;

/// Runs windows until the last ones agree and `least` has passed, or `most` is over.
pub fn run(shared: &Shared, limits: WarmUp) -> Outcome {
    let start = Instant::now();
    let mut rates = Vec::new();
    let mut stable = false;
    while !stable && start.elapsed() + limits.window / 2 <= limits.most && !shared.stopped() {
        rates.push(rate(shared, limits.window));
        stable = start.elapsed() >= limits.least && agree(&rates, limits.within);
    }
    Outcome::Warm { stable, time: start.elapsed(), rates }
}

fn rate(shared: &Shared, window: Duration) -> f64 {
    let (start, before) = (Instant::now(), shared.messages());
    wait(shared, window, u64::MAX);
    (shared.messages() - before) as f64 / start.elapsed().as_secs_f64()
}

fn agree(rates: &[f64], within: f64) -> bool {
    let last = &rates[rates.len().saturating_sub(WINDOWS)..];
    let highest = last.iter().copied().fold(f64::MIN, f64::max);
    let lowest = last.iter().copied().fold(f64::MAX, f64::min);
    last.len() == WINDOWS && highest > 0.0 && (highest - lowest) / highest <= within
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_windows_in_a_row_must_agree() {
        assert!(!agree(&[100.0, 100.0], 0.05));
        assert!(!agree(&[100.0, 90.0, 100.0], 0.05));
        assert!(agree(&[10.0, 100.0, 96.0, 100.0], 0.05));
        assert!(!agree(&[0.0, 0.0, 0.0], 0.05));
    }
}
