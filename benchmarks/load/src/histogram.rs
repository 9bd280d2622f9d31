//! Times in buckets of at most 1/128 relative width: bounded memory, whatever the run's length.

/// Values below this have a bucket each; above, each doubling has as many buckets.
const FINE: u64 = 128;
const FINE_BITS: u32 = 7;
const BUCKETS: usize = (64 - FINE_BITS as usize + 1) * FINE as usize;

pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    highest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], total: 0, highest: 0 }
    }
}

impl Histogram {
    pub fn add(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.total += 1;
        self.highest = self.highest.max(value);
    }

    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.highest = self.highest.max(other.highest);
    }

    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// The value that `share` of all values do not exceed (0 if there are none).
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (number, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return upper_end(number).min(self.highest);
            }
        }
        self.highest
    }
}

fn bucket(value: u64) -> usize {
    if value < FINE {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - FINE_BITS;
    ((u64::from(shift) + 1) * FINE + (value >> shift) - FINE) as usize
}

fn upper_end(bucket: usize) -> u64 {
    let (group, place) = (bucket as u64 / FINE, bucket as u64 % FINE);
    if group == 0 {
        return place;
    }
    let width = 1 << (group - 1);
    (FINE + place) * width + (width - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close() {
        let mut histogram = Histogram::default();
        for value in 1..=100_000 {
            histogram.add(value);
        }
        for share in [0.5, 0.99, 0.999] {
            let exact = 100_000.0 * share;
            let found = histogram.quantile(share) as f64;
            assert!((found - exact).abs() / exact < 0.01, "{share}: {found}");
        }
        assert_eq!(histogram.quantile(1.0), 100_000);
    }

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in [0, 1, 127, 128, 129, 255, 256, 1 << 20, u64::MAX / 3] {
            assert!(upper_end(bucket(value)) >= value);
            assert!(bucket(value) == 0 || upper_end(bucket(value) - 1) < value);
        }
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }
}
