//! Tests of error messages on a real kernel without modules. Each test stops the kernel from
//! loading modules, and loads some itself. So the tests need a virtual machine of the lab (lane A),
//! whose kernel is discarded afterwards.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod support;

use std::fs;
use std::process::Command;
use std::sync::Arc;

use proxy::{IpFamily, Protocol, ServiceAddress};
use proxy_ipvs::{
    Backend, Config, Fault, Iptables, Kernel as _, NetlinkKernel, Op, Outcome, Plan, Properties,
    Rules, Set, Shim,
};
use support::{DumpableKernel as _, ip};

const LOADER: &str = "/proc/sys/kernel/modprobe";

/// Guard that stops the kernel from loading modules until it is dropped.
struct NoLoading(String);

impl NoLoading {
    fn begin() -> Self {
        let loader = fs::read_to_string(LOADER).unwrap();
        fs::write(LOADER, "/bin/false").unwrap();
        Self(loader)
    }
}

impl Drop for NoLoading {
    fn drop(&mut self) {
        fs::write(LOADER, &self.0).unwrap();
    }
}

fn modprobe(arguments: &str) {
    let words = arguments.split(' ');
    assert!(
        Command::new("modprobe")
            .args(words)
            .status()
            .unwrap()
            .success()
    );
}

fn is_loaded(module: &str) -> bool {
    let modules = fs::read_to_string("/proc/modules").unwrap();
    modules
        .lines()
        .any(|line| line.split(' ').next() == Some(module))
}

#[test]
#[ignore = "needs a kernel to throw away: run by make test in the lab"]
fn errors_name_the_missing_kernel_modules() {
    if std::env::var("LAB_LANE").as_deref() != Ok("A") {
        eprintln!("not in lane A: this kernel is not thrown away, or has no modules to miss");
        return;
    }
    for module in [
        "ip_vs_wrr",
        "ip_vs",
        "dummy",
        "ip_set",
        "iptable_nat",
        "ip_set_hash_ipport",
    ] {
        assert!(
            !is_loaded(module),
            "{module} is loaded: this test needs a lab of its own"
        );
    }
    let loading = NoLoading::begin();

    let error = Iptables::choose(None).unwrap_err().to_string();
    assert!(error.contains("modprobe -a iptable_nat"), "{error}");
    modprobe("-a iptable_nat iptable_filter xt_addrtype xt_mark");
    let iptables = Iptables::choose(None).unwrap();
    assert_eq!(
        iptables.backend(),
        Backend::Legacy,
        "this kernel has no nft NAT"
    );
    let error = Iptables::choose(Some(Backend::Nft))
        .unwrap_err()
        .to_string();
    // Errors of iptables-nft if the kernel lacks nf_tables for IP, or if its nf_tables does not
    // support the extensions of iptables (Linux 7.2).
    let reasons = [
        "Failed to initialize nft",
        "Extension addrtype revision 0 not supported",
    ];
    assert!(
        reasons.iter().any(|reason| error.contains(reason)),
        "{error}"
    );

    let open = |family| NetlinkKernel::open(family, iptables.clone());
    let error = open(IpFamily::V4).unwrap_err().to_string();
    assert!(
        is_loaded("ip_vs"),
        "the kernel does not load it, so open does: {error}"
    );
    assert!(error.contains("modprobe ip_set"), "{error}");
    modprobe("ip_set");
    let mut kernel = open(IpFamily::V4).unwrap();

    let at = ServiceAddress::new(ip("10.0.0.1"), 80, Protocol::Tcp);
    let properties = Properties {
        scheduler: "wrr".into(),
        flags: 0,
        timeout: 0,
    };
    let shim = Shim {
        family: IpFamily::V4,
        filled: [].into(),
        forbidden_to_node: [at].into(),
        ranges: proxy_ipvs::Ranges::default(),
    };
    let rules = Op::WriteRules {
        wanted: Arc::new(shim.rules(&Config::default())),
        installed: Arc::new(Rules::default()),
    };
    let sets = Set::all().map(|set| Op::CreateSet(set, 65_536));
    let ops = [Op::CreateLink, Op::AddServer(at.into(), properties)];
    // The kernel refuses these writes as well, because they depend on refused entries.
    let dependents = [
        Op::AddMember(Set::ClusterIp, at.into()),
        Op::BindAddress(at.address),
        rules,
    ];
    let plan = Plan {
        ops: ops.into_iter().chain(sets).chain(dependents).collect(),
    };
    let outcomes = kernel.apply(&plan);
    let refusals: Vec<String> = outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Outcome::Refused {
                reason,
                fault: Fault::Node | Fault::Scheduler,
            } => reason,
            other => panic!("{other:?}"),
        })
        .collect();
    for (index, says) in [
        (0, "modprobe dummy"),
        (1, "modprobe ip_vs_wrr"),
        (2, "modprobe ip_set_hash_ipportip"),
        (plan.ops.len() - 3, "no set of that name"),
        (plan.ops.len() - 2, "no link kube-ipvs0"),
        (plan.ops.len() - 1, "modprobe -a xt_set"),
    ] {
        assert!(refusals[index].contains(says), "{}", refusals[index]);
    }

    assert!(kernel.dump(true).is_ok_and(|found| !found.has_link));

    drop(loading);
    let outcomes = kernel.apply(&plan);
    assert!(
        outcomes.iter().all(|outcome| *outcome == Outcome::Done),
        "{outcomes:?}"
    );
}
