//! Options that change how the scheduler of a Service distributes connections.

use std::time::Duration;

use super::OptionValue;

/// Scheduler flags, with the names of `ipvsadm --sched-flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerFlags {
    /// Scheduler that supports the flags, or `None` if no flag is set.
    scheduler: Option<&'static str>,
    /// True if the scheduler hashes the client's port together with its address.
    pub port: bool,
    /// True if the scheduler chooses another endpoint when the endpoint that the hash selects is
    /// draining or has reached its connection limit.
    pub fallback: bool,
}

impl SchedulerFlags {
    /// Schedulers that have flags.
    const SCHEDULERS: [&'static str; 2] = ["mh", "sh"];

    /// Reports whether a scheduler supports these flags.
    pub fn are_heeded_by(&self, scheduler: &str) -> bool {
        self.scheduler.is_none_or(|of| of == scheduler)
    }
}

impl OptionValue for SchedulerFlags {
    fn parse(text: &str) -> Option<Self> {
        let mut flags = Self {
            scheduler: None,
            port: false,
            fallback: false,
        };
        if text == "none" {
            return Some(flags);
        }
        for word in text.split(',') {
            let (scheduler, flag) = word.split_once('-')?;
            let scheduler = Self::SCHEDULERS.into_iter().find(|of| *of == scheduler)?;
            if flags.scheduler.is_some_and(|of| of != scheduler) {
                return None;
            }
            flags.scheduler = Some(scheduler);
            match flag {
                "port" => flags.port = true,
                "fallback" => flags.fallback = true,
                _ => return None,
            }
        }
        Some(flags)
    }

    fn allowed() -> String {
        "none, or mh-port, mh-fallback or both (of scheduler mh), or sh-port, sh-fallback or both (of sh), with a comma between"
            .to_owned()
    }

    fn text(&self) -> String {
        let Some(scheduler) = self.scheduler else {
            return "none".to_owned();
        };
        let flags = [(self.port, "port"), (self.fallback, "fallback")];
        let set = flags.iter().filter(|(is_set, _)| *is_set);
        let words: Vec<String> = set.map(|(_, flag)| format!("{scheduler}-{flag}")).collect();
        words.join(",")
    }

    fn objection(&self, scheduler: &str) -> Option<String> {
        let own = self.scheduler.filter(|own| *own != scheduler)?;
        Some(format!(
            "scheduler {scheduler} has no such flag, only {own} has"
        ))
    }
}

/// Largest number of connections from this node to each endpoint of the Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxConnections(u16);

impl MaxConnections {
    /// Returns the connection limit, which is at least 1.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl OptionValue for MaxConnections {
    fn parse(text: &str) -> Option<Self> {
        let number: u16 = text.parse().ok().filter(|number| *number > 0)?;
        // Accepts only one spelling of each number, so `+5` and `05` are invalid.
        (number.to_string() == text).then_some(Self(number))
    }

    fn allowed() -> String {
        "a number from 1 to 65535".to_owned()
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

/// Weights of endpoints in this node's zone and on this node. All other endpoints have weight 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    local: Option<u8>,
    zone: Option<u8>,
}

impl Weights {
    /// Largest weight. The table of the scheduler `mh` can represent the ratio of this weight to 1,
    /// so every endpoint still gets clients.
    const MAX: u8 = 100;
    /// Schedulers that distribute connections in proportion to weights. Other schedulers are
    /// unsuitable:
    ///
    /// * `rr`, `lc` and `dh` ignore the size of positive weights.
    /// * `sh` gives some endpoints no clients if the sum of weights exceeds its 256 slots.
    /// * `fo` and `ovf` prefer the largest weight.
    const SCHEDULERS: [&'static str; 5] = ["wrr", "wlc", "sed", "nq", "mh"];

    /// Reports whether a scheduler distributes connections in proportion to weights.
    pub fn are_heeded_by(scheduler: &str) -> bool {
        Self::SCHEDULERS.contains(&scheduler)
    }

    /// Returns the weight of an endpoint.
    pub fn of(self, is_local: bool, is_in_zone: bool) -> u16 {
        let local = self.local.filter(|_| is_local);
        let zone = self.zone.filter(|_| is_in_zone);
        local.or(zone).unwrap_or(1).into()
    }

    /// Returns the largest weight that an endpoint can have.
    pub fn largest(self) -> u16 {
        self.local.max(self.zone).unwrap_or(1).into()
    }

    fn objection_to(scheduler: &str) -> Option<String> {
        (!Self::are_heeded_by(scheduler)).then(|| {
            let schedulers = Self::SCHEDULERS.join(", ");
            format!("scheduler {scheduler} has no weights, only {schedulers} have")
        })
    }
}

impl OptionValue for Weights {
    fn parse(text: &str) -> Option<Self> {
        let mut weights = Self {
            local: None,
            zone: None,
        };
        for word in text.split(',') {
            let (place, number) = word.split_once('=')?;
            let weight: u8 = number.parse().ok()?;
            let is_canonical = weight.to_string() == number;
            let of = match place {
                "local" => &mut weights.local,
                "zone" => &mut weights.zone,
                _ => return None,
            };
            if !is_canonical || !(1..=Self::MAX).contains(&weight) || of.replace(weight).is_some() {
                return None;
            }
        }
        Some(weights)
    }

    fn allowed() -> String {
        "local=N or zone=N, or both with a comma between; N is a number from 1 to 100".to_owned()
    }

    fn text(&self) -> String {
        let weights = [("local", self.local), ("zone", self.zone)].into_iter();
        let words = weights.filter_map(|(place, weight)| Some(format!("{place}={}", weight?)));
        words.collect::<Vec<_>>().join(",")
    }

    fn objection(&self, scheduler: &str) -> Option<String> {
        Self::objection_to(scheduler)
    }
}

/// Time in which the weight of a new endpoint grows from its start value to its full value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowStart {
    /// The number in the annotation, without its unit.
    number: u16,
    /// Length of the annotation's unit in seconds.
    unit: u16,
}

impl SlowStart {
    /// Units of the annotation, each with its length in seconds.
    const UNITS: [(char, u16); 2] = [('s', 1), ('m', 60)];
    /// Shortest and longest time of a slow start, in seconds. A shorter time would cause more
    /// writes for little effect, because the weight grows in coarse steps.
    const SECONDS: std::ops::RangeInclusive<u64> = 10..=3600;

    /// Returns the time after which a new endpoint has its full weight.
    pub fn duration(self) -> Duration {
        Duration::from_secs(u64::from(self.number) * u64::from(self.unit))
    }

    /// Reports whether a scheduler supports a slow start: it distributes connections in proportion
    /// to weights.
    pub fn is_heeded_by(scheduler: &str) -> bool {
        Weights::are_heeded_by(scheduler)
    }
}

impl OptionValue for SlowStart {
    fn parse(text: &str) -> Option<Self> {
        let unit = text.chars().next_back()?;
        let (letter, unit) = Self::UNITS
            .into_iter()
            .find(|(letter, _)| *letter == unit)?;
        let digits = text.strip_suffix(letter)?;
        let number: u16 = digits.parse().ok()?;
        let time = Self { number, unit };
        let is_canonical = number.to_string() == digits;
        (is_canonical && Self::SECONDS.contains(&time.duration().as_secs())).then_some(time)
    }

    fn allowed() -> String {
        "a time from 10s to 60m, such as 30s or 5m".to_owned()
    }

    fn text(&self) -> String {
        let mut units = Self::UNITS.iter();
        let letter = units.find(|(_, seconds)| *seconds == self.unit);
        format!(
            "{}{}",
            self.number,
            letter.map_or('s', |(letter, _)| *letter)
        )
    }

    fn objection(&self, scheduler: &str) -> Option<String> {
        Weights::objection_to(scheduler)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_flags_must_all_belong_to_one_scheduler() {
        for (text, scheduler, port, fallback) in [
            ("none", "rr", false, false),
            ("mh-port", "mh", true, false),
            ("mh-fallback", "mh", false, true),
            ("sh-port,sh-fallback", "sh", true, true),
        ] {
            let flags = SchedulerFlags::parse(text).unwrap();
            assert_eq!((flags.port, flags.fallback), (port, fallback));
            assert_eq!(flags.text(), text);
            assert_eq!(flags.objection(scheduler), None);
            assert_eq!(flags.objection("wrr").is_none(), text == "none");
            assert_eq!(flags.are_heeded_by("wrr"), text == "none");
        }
        for text in [
            "port",
            "rr-port",
            "mh-",
            "mh-port,sh-port",
            "mh-port,",
            "none,mh-port",
        ] {
            assert_eq!(SchedulerFlags::parse(text), None, "{text}");
        }
        let flags = SchedulerFlags::parse("sh-port").unwrap();
        assert_eq!(
            flags.objection("mh").unwrap(),
            "scheduler mh has no such flag, only sh has"
        );
    }

    #[test]
    fn max_connections_must_be_a_positive_number() {
        for (text, number) in [("1", 1), ("100", 100), ("65535", 65_535)] {
            let ceiling = MaxConnections::parse(text).unwrap();
            assert_eq!((ceiling.get(), ceiling.text()), (number, text.to_owned()));
        }
        for text in ["0", "-1", "65536", "+5", "05", "many", "1.5"] {
            assert_eq!(MaxConnections::parse(text), None, "{text}");
        }
    }

    #[test]
    fn each_slow_start_time_has_one_valid_spelling() {
        for (text, seconds) in [("10s", 10), ("90s", 90), ("5m", 300), ("60m", 3600)] {
            let time = SlowStart::parse(text).unwrap();
            assert_eq!(
                (time.duration().as_secs(), time.text()),
                (seconds, text.to_owned())
            );
            assert_eq!(time.objection("sed"), None);
            let objection = time.objection("sh").unwrap();
            assert_eq!(
                objection,
                "scheduler sh has no weights, only wrr, wlc, sed, nq, mh have"
            );
        }
        for text in [
            "", "s", "30", "9s", "61m", "1h", "+30s", "030s", "1.5m", "1m30s", "30ß",
        ] {
            assert_eq!(SlowStart::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_local_weight_overrides_a_zone_weight() {
        for (text, local, in_zone) in [
            ("local=4", 4, 1),
            ("zone=2", 2, 2),
            ("local=4,zone=2", 4, 2),
            ("local=1,zone=100", 1, 100),
        ] {
            let weights = Weights::parse(text).unwrap();
            let of = |is_local, is_in_zone| weights.of(is_local, is_in_zone);
            assert_eq!(
                (of(true, true), of(false, true)),
                (local, in_zone),
                "{text}"
            );
            assert_eq!(of(false, false), 1);
            assert_eq!(weights.largest(), local.max(in_zone));
            assert_eq!(weights.text(), text);
        }
        // The endpoint is on a node without a zone.
        assert_eq!(Weights::parse("local=4").unwrap().of(true, false), 4);
        for text in [
            "",
            "4",
            "local",
            "local=",
            "local=0",
            "local=101",
            "local=04",
            "local=+4",
            "node=4",
            "local=4,",
            "local=4,local=4",
            "zone=2;local=4",
            "local=-1",
        ] {
            assert_eq!(Weights::parse(text), None, "{text}");
        }
        let weights = Weights::parse("zone=2").unwrap();
        assert_eq!(weights.objection("wrr"), None);
        assert_eq!(
            weights.objection("rr").unwrap(),
            "scheduler rr has no weights, only wrr, wlc, sed, nq, mh have"
        );
    }
}
