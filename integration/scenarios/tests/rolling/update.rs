//! A continuous rolling update under load, which replaces all endpoints one after another.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::traffic::{Account, Traffic};
use lab::{Node, Place};
use scenarios::{ApiServer, Cluster, Outcome, at};

use crate::load::{Client, ClientBehaviour};
use crate::web::{SLOW, Web};

/// Number of pods that serve at the same time.
const PODS: usize = 4;
/// Time after which a terminating pod must get no new connection. It includes the second for which
/// the daemon may collect changes.
const SETTLED: Duration = Duration::from_secs(2);
/// Maximum time for a pod to finish its connections, after its removal from the EndpointSlice.
const GRACE: Duration = Duration::from_secs(5);
const CLUSTER_IP: &str = "10.96.0.10:80";
const NODE_PORT: &str = "172.35.0.100:30080";

/// A pod with its web server, and the address of its endpoint.
#[derive(Debug)]
struct Pod {
    place: Place,
    address: String,
    node: Node,
    web: Web,
}

/// The Service `web` with its pods. A new pod gets the address that has been free for longest.
#[derive(Debug)]
struct Rollout {
    api: ApiServer,
    pods: VecDeque<Pod>,
    free: Vec<(Node, VecDeque<String>)>,
    made: usize,
    /// Longest time from the removal of a pod's endpoint to the end of the pod's last connection.
    longest_end: Duration,
}

impl Rollout {
    fn new(c: &Cluster, api: ApiServer) -> Self {
        let range = |prefix: &str| (20..23).map(|last| format!("{prefix}.{last}")).collect();
        Self {
            api,
            pods: VecDeque::new(),
            free: vec![
                (c.node1.clone(), range("10.244.1")),
                (c.node2.clone(), range("10.244.2")),
            ],
            made: 0,
            longest_end: Duration::ZERO,
        }
    }

    /// Starts a pod that serves, but that is not an endpoint yet.
    fn pod(&mut self, c: &mut Cluster) -> Result<Pod> {
        let (node, addresses) = self
            .free
            .iter_mut()
            .max_by_key(|(_, addresses)| addresses.len())
            .context("there are no nodes")?;
        let address = addresses.pop_front().context("no address is free")?;
        self.made += 1;
        let place = c
            .world
            .pod(node, &format!("web-{}", self.made), address.as_str())?;
        Ok(Pod {
            web: Web::serve(&place, 8080)?,
            place,
            address,
            node: node.clone(),
        })
    }

    /// Replaces the oldest pod with a new pod, in the steps of a rolling update: ready,
    /// terminating, gone.
    fn replace(&mut self, c: &mut Cluster) -> Result<()> {
        let new = self.pod(c)?;
        let old = self.pods.pop_front().context("there are no pods")?;
        self.pods.push_back(new);
        // The kubelet sends SIGTERM to the pod at about the time when the endpoint becomes
        // terminating.
        self.publish(Some(&old))?;
        old.web.leave();
        std::thread::sleep(SETTLED);
        let accepted = old.web.accepted();
        self.publish(None)?;
        let left = Instant::now();
        let Pod {
            place,
            address,
            node,
            web,
        } = old;
        std::thread::sleep(Duration::from_millis(200));
        anyhow::ensure!(
            web.accepted() == accepted,
            "{} at {address} still got connections {SETTLED:?} after it had begun to terminate",
            place.name()
        );
        let cut = web.end(GRACE);
        anyhow::ensure!(cut == 0, "{} had to cut {cut} connections", place.name());
        self.longest_end = self.longest_end.max(left.elapsed());
        c.world.remove(&place);
        for (of, addresses) in &mut self.free {
            if of.name() == node.name() {
                addresses.push_back(address.clone());
            }
        }
        Ok(())
    }

    /// Publishes an EndpointSlice with the ready pods and, if given, a terminating pod that still
    /// serves.
    fn publish(&self, going: Option<&Pod>) -> Result<()> {
        let mut slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
             metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}\n\
             ports: [{name: '', protocol: TCP, port: 8080}]\nendpoints:\n"
            .to_owned();
        let ready = self.pods.iter().map(|pod| (pod, true));
        for (pod, is_ready) in ready.chain(going.map(|pod| (pod, false))) {
            writeln!(
                slice,
                "- {{addresses: [{}], nodeName: {}, conditions: {{ready: {is_ready}, serving: true, terminating: {}}}}}",
                pod.address,
                pod.node.name(),
                !is_ready
            )?;
        }
        self.api.apply(&slice)
    }
}

fn start_clients(c: &Cluster, traffic: &mut Traffic) {
    let mut ports = 40_000..;
    let mut start = |place: &Place, to: &str, manner, count: u16, rest: u64| {
        let first = ports.next().unwrap_or_default();
        let _ = ports.nth(usize::from(count));
        let client = Client {
            manner,
            to: at(to),
            ports: first..first + count,
            rest: Duration::from_millis(rest),
        };
        client.start(traffic, place);
    };
    for (place, to) in [(&c.client, CLUSTER_IP), (&c.outside, NODE_PORT)] {
        for count in [1, 4] {
            start(place, to, ClientBehaviour::New, count, 10);
            start(place, to, ClientBehaviour::Reset, count, 10);
        }
        for _ in 0..3 {
            start(place, to, ClientBehaviour::Kept, 1, 20);
        }
        for _ in 0..2 {
            start(place, to, ClientBehaviour::Slow, 2, 0);
        }
    }
    start(&c.node1, CLUSTER_IP, ClientBehaviour::New, 4, 10);
    start(&c.node1, CLUSTER_IP, ClientBehaviour::Kept, 1, 20);
}

pub(crate) fn a_rolling_update_fails_no_request(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    api.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\n\
         spec: {type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], \
         ports: [{protocol: TCP, port: 80, targetPort: 8080, nodePort: 30080}]}",
    )?;
    api.start()?;
    let mut rollout = Rollout::new(c, api);
    for _ in 0..PODS {
        let pod = rollout.pod(c)?;
        rollout.pods.push_back(pod);
    }
    rollout.publish(None)?;
    // One second is the default of upstream's `--ipvs-min-sync-period`.
    c.launch_on(&rollout.api, &["--ipvs-min-sync-period=1s"])?;
    c.await_first_sync()?;

    let mut traffic = Traffic::default();
    start_clients(c, &mut traffic);
    let started = Instant::now();
    // Replaces each pod twice, so that pods reuse addresses. On lane B (`make test-full`), replaces
    // each pod four times.
    let generations = if lab::iptables_backend() == "nft" {
        4
    } else {
        2
    };
    let replaced = generations * PODS;
    for _ in 0..replaced {
        rollout.replace(c)?;
    }
    let lasted = started.elapsed();
    traffic.stop()?;

    let mut sum = Account::default();
    for (manner, mut account) in traffic.accounts() {
        if manner == format!("{:?}", ClientBehaviour::Slow) {
            account.longest = account.longest.saturating_sub(SLOW);
        }
        println!("    {manner}: {account}");
        sum.add(&account);
    }
    println!(
        "    rolling update: {lasted:.0?}, {replaced} pods replaced, {sum}; the last connection \
         of a pod that went was closed {:.1?} after it had left the EndpointSlice",
        rollout.longest_end
    );
    assert_eq!(sum.failed, 0, "{sum}");
    assert_eq!(
        sum.by_server.len(),
        replaced + rollout.pods.len(),
        "each pod had its share"
    );
    Ok(())
}
