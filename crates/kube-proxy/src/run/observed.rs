//! State that the daemon shows over HTTP, and the servers that show it.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use flags::version::KUBERNETES;
use http::request::Parts;
use http_server::{HttpThread, ListenError, Server};
use inspect::{About, Inspect, Question, socket};
use modes::footprints;
use service_counters::SeparateReaders;
use tokio::sync::mpsc;

use crate::config::configz::Configz;
use crate::config::options::Options;
use crate::config::options::object_source::OwnNode;
use crate::events::{Event, Recorder};
use crate::health::Health;
use crate::health::healthz::{self, Status};
use crate::metrics::Metrics;
use crate::metrics::services::ServiceMetrics;
use crate::process::version::OWN_VERSION;
use crate::process::{daemons, memory};
use crate::serve::pages::{self, Api, Pages};

/// State that the HTTP servers show.
pub(super) struct Observed {
    pub(super) metrics: Metrics,
    pub(super) health: Arc<Health>,
    pub(super) status: Arc<Status>,
    pub(super) configz: Configz,
    /// Readers of the current mode's counters, one for each kind of caller.
    pub(super) counters: SeparateReaders,
    pub(super) inspect: Arc<Inspect>,
    /// Queue of requests from the servers to the daemon's loop.
    pub(super) questions: mpsc::Receiver<Question>,
    /// Thread that runs the HTTP servers.
    pub(super) http: HttpThread,
}

/// Servers on IP addresses, and the server on the local socket. Dropping this value ends the
/// servers.
pub(super) type Servers = (Vec<Server>, socket::Server);

impl Observed {
    /// Creates the state that the servers show at the start of the process.
    ///
    /// # Errors
    ///
    /// Fails if the thread of the servers cannot be started.
    pub(super) fn new(options: &Options) -> Result<Self> {
        let http = HttpThread::start().context("cannot start a thread that answers HTTP")?;
        let health = Arc::new(Health::new(options.modes.shared.sync_period));
        let status = Arc::new(Status::new(
            Arc::clone(&health),
            OwnNode::of(&options.source),
        ));
        let about = About {
            node: options.process.node_name.clone(),
            started: SystemTime::now(),
            version: OWN_VERSION,
            kubernetes: KUBERNETES.git_version(),
            modes: footprints::ALL,
            missing_scheduler: proxy_ipvs::foresee_scheduler,
            trim: memory::trim,
            other_daemons: daemons::others,
        };
        let counters = SeparateReaders::default();
        let (inspect, questions) = Inspect::new(about, Arc::clone(&status) as _, &counters);
        let services = ServiceMetrics::new(options.serve.services, counters.scraped.clone());
        let of_mode = options.modes.chosen.definition().metrics();
        Ok(Self {
            metrics: Metrics::of(of_mode, &options.process.gates, services),
            status,
            health,
            inspect,
            questions,
            configz: Configz::new(&options.said.configuration),
            counters,
            http,
        })
    }

    /// Starts the health server, the metrics server and the local socket. `flags` are the flags and
    /// values on this process's command line.
    pub(super) async fn serve(
        &self,
        options: &Options,
        flags: Vec<(String, String)>,
        recorder: &Recorder,
    ) -> Result<Servers> {
        let settings = &options.serve;
        let when_taken = settings.when_taken;
        let mut servers = Vec::new();
        if let Some(at) = settings.healthz_address {
            let (status, metrics) = (Arc::clone(&self.status), self.metrics.clone());
            let respond = move |head: &Parts| status.respond(head, &metrics);
            let _entered = self.http.enter();
            let started = http_server::start(healthz::PURPOSE, at, when_taken, respond);
            servers.push((healthz::PURPOSE, started));
        }
        if let Some(at) = settings.metrics_address {
            let pages = Pages::new(
                self.metrics.clone(),
                self.configz.clone(),
                options.modes.chosen.name(),
                &options.process.gates,
                flags,
                Api::at(at, Arc::clone(&self.inspect)),
            );
            let _entered = self.http.enter();
            let started = http_server::start(pages::PURPOSE, at, when_taken, pages);
            servers.push((pages::PURPOSE, started));
        }
        let mut running = Vec::new();
        for (purpose, started) in servers {
            let failed = |error: &ListenError| {
                let note = error.to_string();
                Event::listen_failed(&options.process.node_name, purpose.event, note)
            };
            match started {
                Ok(server) => {
                    if let Err(error) = &server.address {
                        recorder.record(failed(error));
                    }
                    running.push(server);
                }
                Err(error) => {
                    recorder.record_last(failed(&error)).await;
                    return Err(error.into());
                }
            }
        }
        let _entered = self.http.enter();
        Ok((running, self.inspect.listen()))
    }
}
