//! Judges whether a measured value, such as the daemon's memory, grows.
//!
//! The judgement skips the first part of a run, because memory and the kernel's caches fill up
//! once. It fits a line to the remaining samples. The slope of this line is the median of the
//! slopes of all pairs of samples (Theil-Sen estimator, 1968). A few samples taken during a change
//! hardly affect the line.
//!
//! The growth is the slope times the judged duration. The growth must not exceed the figure's
//! tolerance.

/// Fraction of a run, from its start, that the judgement skips.
pub(crate) const SETTLING: f64 = 0.25;

/// A measured value, such as the daemon's memory, and its maximum growth (absolute and relative).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    /// Name of the figure in the CSV heading.
    pub(crate) name: &'static str,
    /// Title of the chart. The chart's file name is derived from it.
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) tolerance: f64,
    pub(crate) share: f64,
}

/// Result of judging a figure: first and last values, growth, and allowed growth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Verdict {
    /// Median of the first tenth of the judged samples.
    pub(crate) first: f64,
    /// Median of the last tenth of the judged samples.
    pub(crate) last: f64,
    /// Slope of the fitted line: growth per hour, in the figure's unit.
    pub(crate) slope: f64,
    /// Growth during the judged time, in the figure's unit.
    pub(crate) growth: f64,
    /// Maximum growth that passes, in the figure's unit.
    pub(crate) allowed: f64,
}

impl Verdict {
    pub(crate) fn grows(&self) -> bool {
        self.growth > self.allowed
    }
}

impl Figure {
    /// Judges samples in the order of time. A sample has the minutes since the start, and a value.
    /// Returns `None` if fewer than eight samples remain after the skipped part.
    pub(crate) fn judge(&self, samples: &[(f64, f64)]) -> Option<Verdict> {
        const LEAST: usize = 8;
        let end = samples.last()?.0;
        let judged: Vec<(f64, f64)> = samples
            .iter()
            .copied()
            .filter(|(minutes, _)| *minutes >= end * SETTLING)
            .collect();
        let (begin, tenth) = (judged.first()?.0, judged.len().div_ceil(10));
        if judged.len() < LEAST {
            return None;
        }
        let slope = median(slopes(&judged))?;
        let level = median(judged.iter().map(|sample| sample.1).collect())?;
        let values = |part: &[(f64, f64)]| median(part.iter().map(|sample| sample.1).collect());
        Some(Verdict {
            first: values(judged.get(..tenth)?)?,
            last: values(judged.get(judged.len() - tenth..)?)?,
            slope: slope * 60.0,
            growth: slope * (end - begin),
            allowed: self.tolerance.max(self.share * level),
        })
    }
}

/// Returns the slopes between all pairs of samples, per minute.
fn slopes(samples: &[(f64, f64)]) -> Vec<f64> {
    let pairs = samples.iter().enumerate().flat_map(|(index, one)| {
        let later = samples.iter().skip(index + 1);
        later.map(move |other| (*one, *other))
    });
    pairs
        .filter(|(one, other)| other.0 > one.0)
        .map(|(one, other)| (other.1 - one.1) / (other.0 - one.0))
        .collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    let middle = values.len() / 2;
    if values.is_empty() {
        return None;
    }
    let (_, median, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*median)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Figure = Figure {
        name: "resident_kib",
        title: "Resident memory",
        unit: "KiB",
        tolerance: 1024.0,
        share: 0.05,
    };

    /// Returns a series of `samples` samples at intervals of 5 s. Their noise is deterministic.
    fn series(samples: u32, value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let sample = |number: u32| {
            let minutes = f64::from(number) / 12.0;
            let noise = f64::from(number * 7919 % 101) - 50.0;
            (minutes, value(minutes) + noise)
        };
        (0..samples).map(sample).collect()
    }

    #[test]
    fn a_steady_memory_leak_is_detected() {
        // The figure grows by 100 KiB per minute for 40 minutes, of which 30 are judged.
        let verdict = MEMORY.judge(&series(480, |minutes| 20_000.0 + 100.0 * minutes));
        let verdict = verdict.unwrap();
        assert!(verdict.grows(), "{verdict:?}");
        assert!((verdict.slope - 6_000.0).abs() < 60.0, "{verdict:?}");
        assert!((verdict.growth - 3_000.0).abs() < 60.0, "{verdict:?}");
        // In only four minutes, the same growth per minute stays below the tolerance.
        let short = MEMORY
            .judge(&series(48, |minutes| 20_000.0 + 100.0 * minutes))
            .unwrap();
        assert!(!short.grows(), "{short:?}");
    }

    #[test]
    fn a_leak_of_single_descriptors_is_detected() {
        // The figure grows by one descriptor every two minutes.
        let figure = Figure {
            tolerance: 2.0,
            share: 0.0,
            ..MEMORY
        };
        let leak: Vec<(f64, f64)> = (0..480)
            .map(|number| (f64::from(number) / 12.0, f64::from(30 + number / 24)))
            .collect();
        assert!(figure.judge(&leak).unwrap().grows());
    }

    #[test]
    fn an_initial_rise_is_not_a_leak() {
        let steady = series(480, |minutes| 20_000.0 + 4_000.0 * (minutes / 8.0).min(1.0));
        let verdict = MEMORY.judge(&steady).unwrap();
        assert!(!verdict.grows(), "{verdict:?}");
        assert!(verdict.slope.abs() < 60.0, "{verdict:?}");
    }

    #[test]
    fn short_peaks_neither_cause_nor_hide_a_leak() {
        let peak = |minutes: f64| {
            if minutes.fract() < 0.1 { 5_000.0 } else { 0.0 }
        };
        let steady = MEMORY.judge(&series(480, |minutes| 20_000.0 + peak(minutes)));
        assert!(!steady.unwrap().grows());
        let leak = series(480, |minutes| 20_000.0 + 100.0 * minutes + peak(minutes));
        assert!(MEMORY.judge(&leak).unwrap().grows());
    }

    #[test]
    fn too_few_samples_are_not_judged() {
        assert_eq!(MEMORY.judge(&series(9, |_| 1.0)), None);
        assert_eq!(MEMORY.judge(&[]), None);
    }
}
