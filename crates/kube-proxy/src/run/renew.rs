//! Applies changed options, or changed pod networks, to a running daemon.

use std::time::Instant;

use anyhow::Result;
use futures::stream::select_all;
use modes::definition::{Opened, Start};
use modes::detect_local::DetectLocal;
use modes::families::require;
use modes::open::used;
use proxy::Mode;
use tracing::{error, info};

use super::daemon::Daemon;
use super::renewal::{Modes, Prepared};
use crate::config::options::Options;
use crate::logging;
use crate::process::memory;

impl Daemon {
    /// Applies the Node's pod networks if they define local traffic
    /// (`--detect-local-mode=NodeCIDR`). These networks may arrive after the start, or change
    /// later. (Upstream exits when they change.) Does nothing if the Node is missing or has no pod
    /// networks.
    pub(super) fn follow_pod_networks(&mut self) {
        let options = self.renewal.wanted().unwrap_or(&self.options);
        let networks = match (&options.modes.shared.detect_local, self.model.node()) {
            (DetectLocal::NodeCidr, Some(node)) if !node.pod_cidrs.is_empty() => &node.pod_cidrs,
            _ => return,
        };
        if *networks == self.pod_networks {
            return;
        }
        info!(?networks, "the Node has other pod networks");
        self.pod_networks.clone_from(networks);
        self.renewal.want(options.clone(), Modes::Anew);
    }

    /// Applies prepared options. If the options affect the modes, new modes replace the current
    /// modes. A new mode adopts the entries in the kernel, and writes only differences. The model
    /// and its watches stay.
    pub(super) fn renew(&mut self, prepared: Result<Prepared>) {
        let now = Instant::now();
        let opened = prepared.and_then(|Prepared { options, opened }| {
            let beside = match &opened {
                Some(opened) => {
                    let uses = used(&**opened, &options.modes);
                    let counters = [(); 4].map(|()| opened.counters());
                    Some((opened.ending(), opened.notices()?, counters, uses))
                }
                None => None,
            };
            let modes = self.open_modes(opened, &options, now)?;
            Ok((options, modes, beside))
        });
        match opened {
            Ok((options, modes, beside)) => {
                if let Some((ending, notices, counters, uses)) = beside {
                    self.uses = uses;
                    self.observed.counters.set(counters);
                    self.ending = ending;
                    self.rulesets = select_all(notices);
                }
                self.renewal.succeed();
                self.use_modes(modes);
                self.follow(*options, now);
            }
            Err(error) => {
                let delay = self.renewal.fail(now, self.sync_period());
                error!(
                    "the changed configuration is not in effect, and all stays as it was: {error:#}. It is tried again in {delay:?}"
                );
            }
        }
    }

    /// Applies changed options to each part of the daemon that reads them.
    fn follow(&mut self, options: Options, now: Instant) {
        if options.process.oom_score_adj != self.options.process.oom_score_adj {
            memory::set_oom_score(options.process.oom_score_adj);
        }
        if options.log != self.options.log {
            logging::set_verbosity(&options.log);
        }
        for family in &mut self.families {
            family.follow(&options);
        }
        self.observed
            .health
            .set_sync_period(options.modes.shared.sync_period);
        self.observed.configz.set(&options.said.configuration);
        self.next_tick = self.next_tick.min(now + options.modes.shared.sync_period);
        self.not_before = self.not_before.min(now + options.process.min_sync_period);
        self.options = options;
        self.one_family.judge(&self.options.modes, &self.model);
        info!("the changed configuration is in effect");
    }

    /// Creates a new mode for each served IP family, if the changed options require it.
    fn open_modes(
        &self,
        opened: Option<Box<dyn Opened>>,
        options: &Options,
        now: Instant,
    ) -> Result<Vec<Box<dyn Mode>>> {
        let Some(opened) = opened else {
            return Ok(Vec::new());
        };
        for family in &self.families {
            require(opened.left_out(), family.family())?;
        }
        opened.into_modes(&Start {
            settings: &options.modes,
            node: &options.process.node_name,
            model: &self.model,
            now,
        })
    }

    fn use_modes(&mut self, modes: Vec<Box<dyn Mode>>) {
        for mode in modes {
            let mut families = self.families.iter_mut();
            if let Some(family) = families.find(|family| family.family() == mode.family()) {
                family.renew(mode);
            }
        }
    }
}
