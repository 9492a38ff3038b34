//! Times in buckets: constant size, adds up over threads, percentiles within one percent.

use std::time::Duration;

/// Buckets in each power of two: a bucket is at most 1/128 of its value wide.
const PARTS: usize = 128;
const PARTS_BITS: u32 = PARTS.trailing_zeros();
const BUCKETS: usize = PARTS * (64 - PARTS_BITS as usize + 1);

#[derive(Clone)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: vec![0; BUCKETS],
            count: 0,
            max: 0,
        }
    }
}

impl Histogram {
    pub fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
    }

    pub fn add(&mut self, other: &Histogram) {
        for (own, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += more;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// The time that this share of all did not exceed; zero if there are none.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper_end(index).min(self.max));
            }
        }
        Duration::ZERO
    }
}

/// Small values have a bucket each; above, the leading bit and the next seven tell the bucket.
fn bucket(nanos: u64) -> usize {
    let power = (64 - nanos.leading_zeros()).saturating_sub(PARTS_BITS + 1);
    (power as usize) * PARTS + (nanos >> power) as usize
}

/// The largest value of a bucket.
fn upper_end(index: usize) -> u64 {
    if index < 2 * PARTS {
        return index as u64;
    }
    let power = index / PARTS - 1;
    let first = ((index - power * PARTS) as u64) << power;
    first + ((1 << power) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_within_one_percent_below_its_buckets_end() {
        let mut value = 1_u64;
        while value < u64::MAX / 3 {
            for near in [value - 1, value, value + 1] {
                let end = upper_end(bucket(near));
                assert!(near <= end, "{near} > {end}");
                assert!((end - near) as f64 <= near as f64 / 100.0, "{near} {end}");
            }
            value = value * 3 / 2 + 1;
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut odd = Histogram::default();
        let mut even = Histogram::default();
        for micros in 1..=1000_u64 {
            let half = if micros % 2 == 0 { &mut even } else { &mut odd };
            half.record(Duration::from_micros(micros));
        }
        odd.add(&even);
        assert_eq!(
            (odd.count(), odd.max()),
            (1000, Duration::from_micros(1000))
        );
        for (share, want) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)] {
            let found = odd.quantile(share).as_nanos() as f64 / 1000.0;
            assert!((want..=want * 1.01).contains(&found), "{share}: {found}");
        }
        assert_eq!(Histogram::default().quantile(0.5), Duration::ZERO);
    }
}
