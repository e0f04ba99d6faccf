//! Bucket boundaries of histograms.

use prometheus_client::metrics::family::MetricConstructor;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};

/// Choice of the upper bounds of a histogram's buckets.
#[derive(Debug, Clone, Copy)]
pub enum Buckets {
    /// Buckets for the durations of syncs, from 1 ms to 16 s. Each bound is twice its predecessor.
    Sync,
    /// Buckets for network programming latencies: in steps of 0.25 s, then of 1 s, 5 s and 30 s, up
    /// to 5 minutes.
    NetworkProgramming,
    /// Buckets for programming durations, from 0.25 ms to 33 s. Each bound is twice its
    /// predecessor.
    Programming,
    /// Buckets for durations of API requests, in seconds, as in client-go.
    Request,
    /// Buckets for sizes of API requests and responses, in bytes, as in client-go: 64 B to 16 MiB.
    Size,
}

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        match self {
            Self::Sync => Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            Self::Programming => Histogram::new(exponential_buckets(0.000_25, 2.0, 18)),
            Self::NetworkProgramming => {
                // The upper bound of the first bucket is 0, as in upstream. This bucket counts
                // negative latencies, which occur if the clocks of two machines differ.
                let buckets = std::iter::once(0.0)
                    .chain(linear_buckets(0.25, 0.25, 2))
                    .chain(linear_buckets(1.0, 1.0, 59))
                    .chain(linear_buckets(60.0, 5.0, 12))
                    .chain(linear_buckets(120.0, 30.0, 7));
                Histogram::new(buckets)
            }
            Self::Request => Histogram::new([
                0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
            ]),
            Self::Size => {
                let powers = [6, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24];
                Histogram::new(powers.map(|power| f64::from(1 << power)))
            }
        }
    }
}
