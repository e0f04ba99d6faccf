//! Opens the kernel for the chosen mode, and prepares a node for that mode.

use anyhow::Result;
use footprint::uses::Uses;
use proxy::{IpFamily, Model};
use tokio::task::spawn_blocking;
use tracing::warn;

use super::definition::Opened;
use super::families::{Access, SkippedFamily};
use super::programs::Programs;
use super::settings::Settings;

/// Returns the primary IP family, which the node must be able to serve: the family of
/// `--bind-address` or, if that is unspecified (`0.0.0.0`, `::`), of the Node's first address.
pub fn primary(settings: &Settings, model: &Model) -> IpFamily {
    let bind = settings.shared.bind_address;
    let node = model
        .node()
        .and_then(|node| node.addresses.first().copied());
    let of_node = node.filter(|_| bind.is_unspecified());
    IpFamily::of(of_node.unwrap_or(bind))
}

/// Opens the kernel for writes in each IP family that the node can serve. Writes no entry of a
/// Service yet.
///
/// # Errors
///
/// Fails if the node can serve no family.
pub async fn open(settings: &Settings) -> Result<Box<dyn Opened>> {
    let settings = settings.clone();
    // Runs on a blocking thread, because this work waits for the kernel and for other programs.
    // Meanwhile, the source receives the first lists of Services and EndpointSlices.
    spawn_blocking(move || {
        let programs = Programs::new(&settings, Access::Write);
        let mode = settings.chosen.definition();
        let opened = mode.open(&settings, &programs, Access::Write)?;
        for other in settings.chosen.others() {
            if let Some(line) = other.definition().left_behind(&programs) {
                warn!("{line}");
            }
        }
        Ok(opened)
    })
    .await?
}

/// Opens the kernel for reads only. Changes nothing in the kernel.
///
/// # Errors
///
/// Fails if the node can serve no IP family.
pub fn open_to_read(settings: &Settings) -> Result<Box<dyn Opened>> {
    let programs = Programs::new(settings, Access::Read);
    let mode = settings.chosen.definition();
    mode.open(settings, &programs, Access::Read)
}

/// Returns the mode's variants, the kernel features that it uses, and the IP families that the node
/// cannot serve.
pub fn used(opened: &dyn Opened, settings: &Settings) -> Uses {
    let left_out = opened.left_out().iter().map(SkippedFamily::told);
    Uses {
        left_out: left_out.collect(),
        ..opened.uses(settings)
    }
}

/// Prepares a node for the chosen mode (`--init-only`), in an init container:
///
/// * Does all work that needs more privileges than serving has, such as loading kernel modules.
/// * Checks every feature that the mode needs. If one is missing, the new container does not start,
///   and the previous mode's entries continue to serve.
///
/// # Errors
///
/// Fails if this node cannot run the mode.
pub async fn prepare(settings: &Settings) -> Result<()> {
    let settings = settings.clone();
    // Runs the preparation on a blocking thread, because it waits for the kernel and for other
    // programs.
    spawn_blocking(move || prepare_blocking(&settings)).await?
}

fn prepare_blocking(settings: &Settings) -> Result<()> {
    let mode = settings.chosen.definition();
    // A program that this init container lacks is also missing in the main container, because both
    // have the same image.
    let programs = Programs::new(settings, Access::Write);
    mode.prepare(settings, &programs)?;
    // Probes only the family of the bind address and the families that the node supports, because
    // many nodes lack IPv6. Without a bind address, the primary family is unknown here: the Node's
    // first address decides it later.
    let is_named = |family: IpFamily| settings.shared.node_ip(family).is_some();
    let is_there = |family: &IpFamily| is_named(*family) || iptables::exists(*family).is_ok();
    let families: Vec<IpFamily> = IpFamily::ALL.into_iter().filter(is_there).collect();
    let failures = families.iter().filter_map(|family| {
        let failure = mode.probe(settings, &programs, *family).err()?;
        Some((*family, failure))
    });
    let failures: Vec<_> = failures.collect();
    for (family, failure) in &failures {
        if is_named(*family) || failures.len() == families.len() {
            anyhow::bail!("cannot serve {family}: {failure:#}");
        }
        warn!(%family, reason = format!("{failure:#}"), "this family cannot be served here");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use flags::Flags;
    use proxy::{Event, Node};

    use super::*;

    use crate::settings::ProxyMode;

    const V4: IpFamily = IpFamily::V4;
    const V6: IpFamily = IpFamily::V6;

    #[test]
    fn the_bind_address_or_first_node_address_decides_the_primary_family() {
        let model = |addresses: &[&str]| {
            let mut model = Model::of_node("node1");
            model.apply(Event::NodeApplied(Node {
                name: "node1".into(),
                addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
                ..Node::default()
            }));
            model
        };
        for (bind, addresses, wanted) in [
            ("0.0.0.0", &["fd00::1", "192.0.2.1"][..], V6),
            ("0.0.0.0", &["192.0.2.1", "fd00::1"], V4),
            ("::", &["192.0.2.1"], V4),
            ("192.0.2.1", &["fd00::1"], V4),
            ("fd00::1", &["192.0.2.1"], V6),
            // Without an address in the Node object, the family of the bind address decides.
            ("0.0.0.0", &[], V4),
            ("::", &[], V6),
        ] {
            let flags = Flags {
                bind_address: bind.parse().unwrap(),
                ..Flags::defaults()
            };
            let mode = ProxyMode::default();
            let periods = mode.periods(&flags).unwrap();
            let settings = Settings::read(&flags, mode, &periods).unwrap();
            assert_eq!(primary(&settings, &model(addresses)), wanted, "{bind}");
        }
    }
}
