//! Tests that the daemon repairs entries that another program has changed.

use std::time::{Duration, Instant};

use lab::Signal;
use scenarios::{Cluster, Outcome, Service, tcp};

const SYNC_PERIOD: Duration = Duration::from_secs(1);

const DAMAGE: [&str; 11] = [
    "ipvsadm -C",
    "ipvsadm -d -t 10.96.0.10:80 -r 10.244.2.10:8080",
    "ipvsadm -e -t 10.96.0.10:80 -r 10.244.2.10:8080 -m -w 5",
    "ipvsadm -E -t [fd96::10]:80 -s wlc",
    "ipset flush",
    "ipset add KUBE-CLUSTER-IP 10.96.0.99,tcp:1; ipset del KUBE-CLUSTER-IP 10.96.0.10,tcp:80",
    "iptables-$backend -t nat -F KUBE-SERVICES",
    "ip6tables-$backend -t nat -F; ip6tables-$backend -F",
    "iptables-$backend -t nat -D PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES",
    "ip address flush dev kube-ipvs0; ip address add 10.96.0.98/32 dev kube-ipvs0",
    "ip link del kube-ipvs0",
];

pub(crate) fn a_resync_repairs_each_kind_of_damage(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10");
    c.apply(&web)?;
    c.start(&["--ipvs-sync-period=1s"])?;
    c.until_served(&web)?;
    let whole = c.state()?;
    for damage in DAMAGE {
        // Pauses the daemon, which could otherwise repair the damage before the test sees it.
        c.signal(Signal::STOP)?;
        c.sh(damage)?;
        // Measures how long a read of the state takes. It starts a dozen programs, which is slow on
        // a busy machine.
        let looked = Instant::now();
        assert_ne!(c.state()?, whole, "{damage} has damaged something");
        let look = looked.elapsed();
        c.signal(Signal::CONT)?;
        let took = c
            .until("it is repaired", || Ok(c.state()? == whole))
            .map_err(|error| error.context(damage))?;
        // A repair starts as many programs as a read of the state, and a read that comes too early
        // is repeated. The limit therefore includes three reads.
        assert!(
            took < 3 * SYNC_PERIOD + 3 * look,
            "{damage}: repaired after {took:?}, and a look takes {look:?}"
        );
        for (from, to) in [
            (&c.client, "10.96.0.10:80"),
            (&c.client, "[fd96::10]:80"),
            (&c.outside, "10.96.0.10:80"),
            (&c.outside, "172.35.0.100:30080"),
        ] {
            c.until_answered(from, to)
                .map_err(|error| error.context(damage))?;
        }
    }
    Ok(())
}
