//! `kube-proxy check`: what the daemon would write if it were started now, with the same flags.
//! Nothing is written.
//!
//! It takes the way of the daemon up to the first write: sources, kernel, model, plans. Not
//! foretold: connection tracking entries of UDP flows that turn stale, what objects that change
//! meanwhile bring, and whether the kernel has a scheduler that no virtual server uses, which can
//! only be tried: a warning says it where the lists of modules do. Asking for IPVS, which every
//! mode does (ipvs mode may have left something), may make the kernel load its module, as `ipvsadm
//! -L` does.

pub mod answer;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use proxy::Model;

use crate::gather::gather;
use crate::kernel_settings;
use crate::modes::definition::Start;
use crate::modes::families::require;
use crate::modes::open::{open_to_read, primary};
use crate::modes::preview::{Change, NODE};
use crate::options::Options;
use answer::{Answer, Output};

/// How long the first lists may take.
const FIRST_LISTS_PATIENCE: Duration = Duration::from_mins(1);

/// Prints what would change. Exit status 0: nothing would; 1: something would.
///
/// # Errors
///
/// It cannot be said, which is exit status 2.
pub async fn check(options: Options, output: Output) -> Result<ExitCode> {
    let answer = Box::pin(look(&options)).await?;
    print!("{}", answer.render(output)?);
    Ok(ExitCode::from(u8::from(answer.would_change)))
}

async fn look(options: &Options) -> Result<Answer> {
    let (node, settings) = (&*options.process.node_name, &options.modes);
    let (mut events, _) = source::open(&options.source, node, source::uncounted).await?;
    let kernel = open_to_read(settings)?;
    let sysctls = kernel_settings::pending(options);
    let mut model = Model::of_node(node).with_external_ips(options.external_ips());
    let first_lists = gather(&mut events, &mut model, &options.source);
    tokio::time::timeout(FIRST_LISTS_PATIENCE, first_lists)
        .await
        .with_context(|| {
            format!(
                "the objects have not come within {} s: is the API server there (--kubeconfig, --master)?",
                FIRST_LISTS_PATIENCE.as_secs()
            )
        })?;
    let mut warnings = options.said.warnings.clone();
    let may_remove = model.is_complete() && model.is_whole();
    if !may_remove {
        warnings.push(
            "some objects cannot be read: until that is mended nothing is removed".to_owned(),
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
    let settings = preview.settings.drain(..).chain(sysctls);
    let mut changes: Vec<Change> = settings.map(Change::setting).collect();
    let mut writes = BTreeMap::from([(NODE.to_owned(), changes.len())]);
    let mut previews = vec![preview];
    if let Some(predecessor) = predecessor {
        previews.push(predecessor.preview().await?);
    }
    for preview in previews {
        for (of, count) in preview.writes {
            *writes.entry(of).or_default() += count;
        }
        changes.extend(preview.changes);
        warnings.extend(preview.warnings);
    }
    Ok(Answer {
        would_change: !changes.is_empty(),
        warnings,
        writes,
        changes,
    })
}
