//! Output files of a run: samples as CSV during the run, charts and a table at its end.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use charts::{Line, over_time, short};

use crate::judge::{SETTLING, Verdict};
use crate::sample::{FIGURES, Values};
use lab::traffic::Account;

/// The samples of a run. `add` writes each sample to the file immediately, so that the samples
/// survive a crash.
#[derive(Debug)]
pub(crate) struct Samples {
    folder: PathBuf,
    csv: File,
    all: Vec<(f64, Values)>,
}

impl Samples {
    /// Creates the file `soak.csv` in a directory.
    ///
    /// # Errors
    /// Fails if the directory is not writable.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let file = folder.join("soak.csv");
        let mut csv =
            File::create(&file).with_context(|| format!("cannot write {}", file.display()))?;
        let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        writeln!(
            csv,
            "minutes,{},answered,failed,starved,elsewhere,in_vain",
            names.join(",")
        )?;
        Ok(Self {
            folder: folder.to_owned(),
            csv,
            all: Vec::new(),
        })
    }

    /// Adds a sample, with the clients' results for the steady Services and for the changing
    /// Services.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn add(
        &mut self,
        minutes: f64,
        values: Values,
        [steady, others]: [Account; 2],
    ) -> Result<()> {
        let (answered, failed, starved) = (steady.answered(), steady.failed, steady.unjudged);
        let (elsewhere, in_vain) = (others.answered(), others.failed);
        let numbers: Vec<String> = values.iter().map(u32::to_string).collect();
        let numbers = numbers.join(",");
        writeln!(
            self.csv,
            "{minutes:.3},{numbers},{answered},{failed},{starved},{elsewhere},{in_vain}"
        )?;
        self.all.push((minutes, values));
        Ok(())
    }

    /// Returns the number of samples.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns all samples of one figure, by its index in [`FIGURES`]: minutes since the start, and
    /// value.
    fn of(&self, index: usize) -> Vec<(f64, f64)> {
        let value = |values: &Values| values.get(index).copied().unwrap_or_default();
        self.all
            .iter()
            .map(|(minutes, values)| (*minutes, f64::from(value(values))))
            .collect()
    }

    /// Judges each figure, writes its chart and the table of all figures. Returns the table, and a
    /// sentence about each growing figure.
    ///
    /// # Errors
    /// Fails if there are too few samples, or if the directory cannot be written.
    pub(crate) fn judge(&self) -> Result<(String, Vec<String>)> {
        let mut table = "| figure | first | last | growth while judged | allowed | an hour |\n|---|--:|--:|--:|--:|--:|\n".to_owned();
        let mut grown = Vec::new();
        let settled = self.all.last().map_or(0.0, |last| last.0) * SETTLING;
        for (index, figure) in FIGURES.iter().enumerate() {
            let samples = self.of(index);
            let verdict = figure.judge(&samples).with_context(|| {
                format!(
                    "{} samples are too few to judge: let it run longer",
                    self.len()
                )
            })?;
            let Verdict {
                first,
                last,
                slope,
                growth,
                allowed,
            } = verdict;
            let [first, last, slope, growth, allowed] =
                [first, last, slope, growth, allowed].map(short);
            let (title, unit) = (figure.title, figure.unit);
            writeln!(
                table,
                "| {title} ({unit}) | {first} | {last} | {growth} | {allowed} | {slope} |"
            )?;
            if verdict.grows() {
                grown.push(format!(
                    "{title} grows by {growth} {unit} while it is judged, {slope} an hour; {allowed} are allowed"
                ));
            }
            let line = Line {
                name: figure.name.to_owned(),
                points: samples,
                ..Line::default()
            };
            if let Some(svg) = over_time(title, unit, settled, &[line]) {
                fs::write(self.folder.join(format!("{}.svg", figure.name)), svg)?;
            }
        }
        fs::write(self.folder.join("soak.md"), &table)?;
        Ok((table, grown))
    }
}
