//! Computes the kernel writes of a start, by following the steps of a start up to the first write.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use modes::definition::Start;
use modes::families::require;
use modes::node_ports;
use modes::open::{open_to_read, primary};
use modes::preview::{Change, CurrentEntryCount, NODE, Obstacle};
use proxy::{Model, OptionSupport};
use serde::Serialize;
use source::{ApiServerAddress, ConnectHooks, Trouble};

use super::CANNOT_SAY;
use super::finding::{Finding, Status};
use super::names::Names;
use crate::config::options::Options;
use crate::node::{external_addresses, kernel_settings};
use crate::run::first_lists::gather;

/// Interval of progress messages while the command waits for the first lists.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Forecast of the kernel writes that a start of the daemon would make.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StartForecast {
    pub(super) would_change: bool,
    /// True if all objects could be read. Otherwise the forecast may lack some removals.
    pub(super) whole: bool,
    pub(super) warnings: Vec<String>,
    /// Number of writes, by `node`, `IPv4` and `IPv6`. All rules of an IP family count as one
    /// write.
    pub(super) writes: BTreeMap<String, usize>,
    /// Changes that the start would make, in their order.
    pub(super) changes: Vec<Change>,
    /// Numbers of entries that already have their desired state. A start keeps these entries.
    pub(super) kept: Vec<CurrentEntryCount>,
    /// Variant of each IP family's entries, such as `IPv4: layout flat`. Empty in a mode with only
    /// one variant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) forms: Vec<String>,
    /// Addresses of the API server, which no Service may use, each with its origin.
    #[serde(skip)]
    pub(super) guarded: Vec<String>,
    /// Objects of other programs, such as sets, that would make the kernel refuse writes.
    /// `warnings` also reports these obstacles.
    #[serde(skip)]
    pub(super) obstacles: Vec<Obstacle>,
    /// True if a preflight check found that the start would fail.
    #[serde(skip)]
    pub(super) would_fail: bool,
}

impl StartForecast {
    /// Returns the exit status. A found difference is certain even if objects are missing. "No
    /// difference" is certain only if all objects could be read.
    pub(super) fn status(&self) -> u8 {
        match (self.would_fail, self.would_change, self.whole) {
            (true, _, _) | (false, false, false) => CANNOT_SAY,
            (false, true, _) => 1,
            (false, false, true) => 0,
        }
    }

    /// Records the findings because of which a start would fail, and adds them to the warnings.
    pub(super) fn note_failures(&mut self, findings: &[Finding]) {
        for finding in findings.iter().filter(|of| of.status == Status::Fail) {
            self.would_fail = true;
            // A warning of the forecast may have the same text as a finding, and must not appear
            // twice.
            if !self.warnings.contains(&finding.message) {
                let warning = format!("{}: {}", finding.name, finding.message);
                self.warnings.push(warning);
            }
        }
    }

    /// Returns the warnings, and lines such as `IPv4: layout flat` about the variants of entries.
    pub(super) fn heading(&self) -> String {
        let warnings = self.warnings.iter();
        let warnings = warnings.map(|warning| format!("warning  {}\n", view::shown(warning)));
        let forms = self.forms.iter().map(|form| format!("form     {form}\n"));
        warnings.chain(forms).collect()
    }

    /// Returns the words that follow a message such as "nothing to do" if some objects could not be
    /// read. Returns an empty text if all objects could be read.
    pub(super) fn as_far_as_known(&self) -> &'static str {
        if self.whole {
            ""
        } else {
            ", as far as the objects can be read"
        }
    }
}

/// Computes the forecast of a start, and returns it with the model from which it was computed.
///
/// # Errors
///
/// Fails if some required state cannot be read. The error names this state and the next step.
pub(super) async fn foresee(
    options: &Options,
    timeout: Duration,
) -> Result<(StartForecast, Model)> {
    let (node, settings) = (&*options.process.node_name, &options.modes);
    let source = source::connect(
        &options.source,
        node,
        source::uncounted,
        ConnectHooks::default(),
    )
    .await?;
    let mut events = source.events;
    let kernel = open_to_read(settings)?;
    let sysctls = kernel_settings::pending(options);
    let mut model = Model::of_node(node)
        .with_external_ips(options.external_ips())
        .with_address_rules(options.address_rules());
    let first_lists = gather(&mut events, &mut model, &options.source, |_| ());
    let api_servers = || {
        let known = source.addresses.known();
        let known: Vec<String> = known.iter().map(shown).collect();
        if known.is_empty() {
            String::new()
        } else {
            format!(" at {}", known.join(", "))
        }
    };
    let report = |waited: Duration| {
        view::print_error(format_args!(
            "kube-proxy: waiting for the objects{} for {} s, at most {timeout:?} (--timeout)",
            api_servers(),
            waited.as_secs()
        ));
    };
    if await_reporting(first_lists, timeout, report)
        .await
        .is_none()
    {
        bail!(
            "the objects have not come within {timeout:?}: {}",
            cause(&source.troubles.now(), &api_servers())
        );
    }
    let start = Start {
        settings,
        node,
        model: &model,
        now: Instant::now(),
    };
    let node_ports_at = node_ports::addresses(&start);
    model.serve_node_ports_at(&node_ports_at);
    let guarded = guarded(&model, &source.addresses.known());
    let mut warnings = options.said.warnings.clone();
    let may_remove = model.is_complete() && model.is_whole();
    if !may_remove {
        warnings.push(
            "some objects cannot be read, so a start would remove nothing, and unwanted entries are not listed: \
             correct these objects; the log names them"
                .to_owned(),
        );
    }
    let told = model.take_changes();
    require(kernel.left_out(), primary(settings, &model))?;
    let start = Start {
        settings,
        node,
        model: &model,
        now: Instant::now(),
    };
    let predecessor = kernel.predecessor(settings).filter(|_| may_remove);
    let mut preview = kernel.preview(&start, &told).await?;
    let heeding = OptionSupport {
        mode: settings.chosen.name(),
        scheduler: settings.ipvs.scheduler.as_str().into(),
        unavailable: std::mem::take(&mut preview.unavailable),
    };
    warnings.extend(external_addresses::refused(&model, &heeding));
    let sysctls = sysctls.into_iter().map(Into::into);
    let settings = preview.settings.drain(..).chain(sysctls);
    let mut changes: Vec<Change> = settings.map(Change::setting).collect();
    let mut writes = BTreeMap::from([(NODE.to_owned(), changes.len())]);
    let mut previews = vec![preview];
    if let Some(predecessor) = predecessor {
        previews.push(predecessor.preview().await?);
    }
    let (mut kept, mut forms, mut obstacles) = (Vec::new(), Vec::new(), Vec::new());
    for preview in previews {
        for (of, count) in preview.writes {
            *writes.entry(of).or_default() += count;
        }
        changes.extend(preview.changes);
        kept.extend(preview.kept);
        forms.extend(preview.forms);
        warnings.extend(preview.warnings);
        let messages = preview.obstacles.iter().map(|of| of.message.clone());
        warnings.extend(messages);
        obstacles.extend(preview.obstacles);
    }
    let names = Names::of(&model);
    for change in changes.iter_mut().filter(|of| of.service.is_none()) {
        change.service = names.find(&change.entry).map(str::to_owned);
    }
    let foreseen = StartForecast {
        would_change: !changes.is_empty(),
        whole: may_remove,
        warnings,
        writes,
        changes,
        kept,
        forms,
        guarded,
        obstacles,
        would_fail: false,
    };
    Ok((foreseen, model))
}

/// Waits for `future`, and prints the elapsed time at each [`REPORT_INTERVAL`]. Returns `None`
/// after `timeout`.
async fn await_reporting<T>(
    future: impl Future<Output = T>,
    timeout: Duration,
    mut report: impl FnMut(Duration),
) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut waited = Duration::ZERO;
    loop {
        let next = REPORT_INTERVAL.min(timeout.saturating_sub(waited));
        if let Ok(value) = tokio::time::timeout(next, &mut future).await {
            return Some(value);
        }
        waited += next;
        if waited >= timeout {
            return None;
        }
        report(waited);
    }
}

/// Returns the reason why the objects have not arrived: the current errors of requests, or a
/// question if no request has failed yet. `place` has the addresses of the API server.
fn cause(troubles: &[Trouble], place: &str) -> String {
    if troubles.is_empty() {
        return format!("is the API server there{place} (--kubeconfig, --master)?");
    }
    let texts: Vec<&str> = troubles.iter().map(|trouble| &*trouble.text).collect();
    texts.join("; ")
}

fn shown(address: &ApiServerAddress) -> String {
    format!("{} ({})", address.at, address.from)
}

/// Returns the API server's addresses, which no Service may use, each with its origin.
fn guarded(model: &Model, known: &[ApiServerAddress]) -> Vec<String> {
    let all = model.api_servers().iter();
    let named = all.map(|at| match known.iter().find(|address| address.at == *at) {
        Some(address) => shown(address),
        None => format!("{at} (an endpoint of default/kubernetes)"),
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_ends_with_the_errors_of_the_api_server() {
        let place = " at 127.0.0.1:1 (--master)";
        assert_eq!(
            cause(&[], place),
            "is the API server there at 127.0.0.1:1 (--master) (--kubeconfig, --master)?"
        );
        let trouble = |text: &str| Trouble {
            text: text.to_owned(),
            since: Instant::now(),
        };
        let troubles = [
            trouble("refused (403); check its role"),
            trouble("no answer"),
        ];
        let wanted = "refused (403); check its role; no answer";
        assert_eq!(cause(&troubles, place), wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_is_reported_and_ends_at_the_timeout() {
        let mut reports = Vec::new();
        let never = std::future::pending::<()>();
        let timeout = Duration::from_secs(12);
        let result = await_reporting(never, timeout, |waited| reports.push(waited.as_secs())).await;
        assert_eq!((result, reports), (None, vec![5, 10]));
        let soon = async { 7 };
        let result = await_reporting(soon, timeout, |_| panic!("no wait")).await;
        assert_eq!(result, Some(7));
    }
}
