//! Computes what a start would write. Does the same as a start up to the first write: source,
//! kernel, model, plans.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use modes::definition::Start;
use modes::families::require;
use modes::node_ports;
use modes::open::{open_to_read, primary};
use modes::preview::{Change, Kept, NODE, Obstacle};
use proxy::{Model, OptionSupport};
use serde::Serialize;
use source::{ApiServerAddress, ConnectHooks};

use super::CANNOT_SAY;
use super::names::Names;
use crate::config::options::Options;
use crate::node::{external_addresses, kernel_settings};
use crate::run::first_lists::gather;

/// Time limit for the first lists.
const FIRST_LISTS_PATIENCE: Duration = Duration::from_mins(1);

/// The forecast of a start.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Foreseen {
    pub(super) would_change: bool,
    /// True if all objects could be read. Otherwise some removals may be missing from the forecast.
    pub(super) whole: bool,
    pub(super) warnings: Vec<String>,
    /// Number of writes, by `node`, `IPv4` and `IPv6`. All rules of a family are one write.
    pub(super) writes: BTreeMap<String, usize>,
    /// Changes, in the order in which they would be made.
    pub(super) changes: Vec<Change>,
    /// Entries that are up to date and stay.
    pub(super) kept: Vec<Kept>,
    /// Addresses of the API server that no Service may take, each with its origin.
    #[serde(skip)]
    pub(super) guarded: Vec<String>,
    /// Foreign state that would make the kernel reject writes. The warnings include it, too.
    #[serde(skip)]
    pub(super) obstacles: Vec<Obstacle>,
}

impl Foreseen {
    /// Returns the exit status. Differences are certain; their absence is certain only if all
    /// objects could be read.
    pub(super) fn status(&self) -> u8 {
        match (self.would_change, self.whole) {
            (true, _) => 1,
            (false, true) => 0,
            (false, false) => CANNOT_SAY,
        }
    }

    /// Returns the restriction to add to "nothing to do".
    pub(super) fn as_far_as_known(&self) -> &'static str {
        if self.whole {
            ""
        } else {
            ", as far as the objects can be read"
        }
    }
}

/// Computes the forecast. Also returns the model behind it.
///
/// # Errors
///
/// There is no forecast. The error names what could not be read, and the next step.
pub(super) async fn foresee(options: &Options) -> Result<(Foreseen, Model)> {
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
    tokio::time::timeout(FIRST_LISTS_PATIENCE, first_lists)
        .await
        .with_context(|| {
            let known = source.addresses.known();
            let known: Vec<String> = known.iter().map(shown).collect();
            let at = if known.is_empty() { String::new() } else { format!(" at {}", known.join(", ")) };
            format!(
                "the objects have not come within {} s: is the API server there{at} (--kubeconfig, --master)?",
                FIRST_LISTS_PATIENCE.as_secs()
            )
        })?;
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
            "some objects cannot be read: until that is mended nothing is removed, and whether something is there that \
             should not be cannot be said"
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
    let (mut kept, mut obstacles) = (Vec::new(), Vec::new());
    for preview in previews {
        for (of, count) in preview.writes {
            *writes.entry(of).or_default() += count;
        }
        changes.extend(preview.changes);
        kept.extend(preview.kept);
        warnings.extend(preview.warnings);
        let messages = preview.obstacles.iter().map(|of| of.message.clone());
        warnings.extend(messages);
        obstacles.extend(preview.obstacles);
    }
    let names = Names::of(&model);
    for change in changes.iter_mut().filter(|of| of.service.is_none()) {
        change.service = names.find(&change.entry).map(str::to_owned);
    }
    let foreseen = Foreseen {
        would_change: !changes.is_empty(),
        whole: may_remove,
        warnings,
        writes,
        changes,
        kept,
        guarded,
        obstacles,
    };
    Ok((foreseen, model))
}

fn shown(address: &ApiServerAddress) -> String {
    format!("{} ({})", address.at, address.from)
}

/// Returns the addresses that no Service may take, each with its origin.
fn guarded(model: &Model, known: &[ApiServerAddress]) -> Vec<String> {
    let all = model.api_servers().iter();
    let named = all.map(|at| match known.iter().find(|address| address.at == *at) {
        Some(address) => shown(address),
        None => format!("{at} (an endpoint of default/kubernetes)"),
    });
    named.collect()
}
