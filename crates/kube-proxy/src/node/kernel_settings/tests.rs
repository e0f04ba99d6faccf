use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use modes::settings::ProxyMode;
use modes::sysctl::apply::ApplyOutcome;
use modes::sysctl::row::SysctlRow;
use modes::sysctl::setting::Setting;
use modes::sysctl::settings::Conntrack;

use super::*;
use crate::tests::options;

/// Facts from which the wanted settings are computed.
struct Facts {
    kernel: (u32, u32),
    cpus: u64,
    mode: ProxyMode,
    strict_arp: bool,
    serves_localhost: bool,
    conntrack: Conntrack,
}

impl Facts {
    fn wanted(&self) -> Vec<WantedSetting> {
        let mut options = options(&[]);
        options.modes.chosen = self.mode;
        options.modes.iptables.localhost_node_ports = self.serves_localhost;
        options.kernel.strict_arp = self.strict_arp;
        options.kernel.conntrack = self.conntrack;
        let (kernel, cpus) = (self.kernel, self.cpus);
        wanted(&options, Machine { kernel, cpus })
    }
}

/// Returns the table row of each setting.
fn rows() -> Vec<&'static SysctlRow> {
    let all = wanted(&options(&[]), Machine::this()).into_iter();
    all.map(|wanted| wanted.row).collect()
}

/// Returns a fake kernel whose settings are all 0, and facts under which the settings of connection
/// tracking stay unchanged.
fn kernel(name: &str, version: (u32, u32)) -> (PathBuf, Facts) {
    let root = std::env::temp_dir().join(format!("sysctl-{}-{name}", std::process::id()));
    for row in rows() {
        let path = root.join(row.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "0\n").unwrap();
    }
    let facts = Facts {
        kernel: version,
        cpus: 1,
        mode: ProxyMode::Ipvs,
        strict_arp: false,
        serves_localhost: false,
        conntrack: Conntrack::default(),
    };
    (root, facts)
}

/// Applies the settings, and returns the names of the settings that were written. Panics if a
/// setting cannot be written.
fn written(root: &Path, facts: &Facts) -> Vec<String> {
    let settled = apply(root, &facts.wanted(), &mut Origins::new());
    assert!(settled.failures.is_empty(), "{settled:?}");
    settled.written
}

fn refusal(root: &Path, facts: &Facts) -> String {
    let settled = apply(root, &facts.wanted(), &mut Origins::new());
    assert!(!settled.failures.is_empty(), "{settled:?}");
    SysctlErrors(settled.failures).to_string()
}

#[test]
fn only_different_kernel_settings_are_written() {
    let (root, mut facts) = kernel("differs", (6, 1));
    fs::write(root.join("proc/sys/net/ipv4/ip_forward"), "1\n").unwrap();
    let told: Vec<String> = differences(&root, &facts.wanted())
        .map(|difference| Setting::from(difference).to_string())
        .collect();
    assert_eq!(told.len(), 3);
    assert_eq!(told[0], "set net.ipv4.vs.conntrack to 1 (it is 0)");
    assert_eq!(
        written(&root, &facts),
        [
            "net.ipv4.vs.conntrack",
            "net.ipv4.vs.expire_nodest_conn",
            "net.ipv4.vs.expire_quiescent_template"
        ]
    );
    assert_eq!(written(&root, &facts), Vec::<String>::new());
    (facts.kernel, facts.strict_arp) = ((5, 4), true);
    fs::write(root.join("proc/sys/net/ipv4/vs/conn_reuse_mode"), "1\n").unwrap();
    assert_eq!(written(&root, &facts).len(), 3);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn conntrack_settings_follow_the_flags() {
    let (root, mut facts) = kernel("conntrack", (6, 1));
    written(&root, &facts);
    let hash_size = root.join("sys/module/nf_conntrack/parameters/hashsize");
    let netfilter = root.join("proc/sys/net/netfilter");
    let read = |name: &str| fs::read_to_string(netfilter.join(name)).unwrap();
    facts.conntrack = Conntrack {
        max_per_core: 32_768,
        min: 131_072,
        tcp_established: Duration::from_hours(24),
        tcp_close_wait: Duration::from_hours(1),
        tcp_be_liberal: true,
        udp: Duration::from_secs(30),
        udp_stream: Duration::from_millis(120_900),
    };
    assert_eq!(written(&root, &facts).len(), 7);
    for (name, value) in [
        ("nf_conntrack_max", "131072"),
        ("nf_conntrack_tcp_timeout_established", "86400"),
        ("nf_conntrack_tcp_timeout_close_wait", "3600"),
        ("nf_conntrack_tcp_be_liberal", "1"),
        ("nf_conntrack_udp_timeout", "30"),
        ("nf_conntrack_udp_timeout_stream", "120"),
    ] {
        assert_eq!(read(name), value, "{name}");
    }
    assert_eq!(fs::read_to_string(&hash_size).unwrap(), "32768");
    // A conntrack table that is larger than needed keeps its size, no matter which program enlarged
    // it.
    facts.conntrack.min = 0;
    assert_eq!(written(&root, &facts), Vec::<String>::new());
    fs::write(netfilter.join("nf_conntrack_max"), "2000000\n").unwrap();
    facts.conntrack.min = 131_072;
    assert_eq!(written(&root, &facts), Vec::<String>::new());
    assert_eq!(read("nf_conntrack_max"), "2000000\n");
    facts.conntrack.min = 2_000_001;
    let both = [
        "net.netfilter.nf_conntrack_max",
        "/sys/module/nf_conntrack/parameters/hashsize",
    ];
    assert_eq!(written(&root, &facts), both);
    fs::remove_dir_all(root).unwrap();
}

const ARP: [&str; 2] = [
    "proc/sys/net/ipv4/conf/all/arp_ignore",
    "proc/sys/net/ipv4/conf/all/arp_announce",
];

#[test]
fn a_kernel_setting_is_restored_unless_another_program_wrote_it() {
    let (root, mut facts) = kernel("origins", (6, 1));
    let mut origins = Origins::new();
    let found = || ARP.map(|path| fs::read_to_string(root.join(path)).unwrap());
    let mut settle = |strict_arp| {
        facts.strict_arp = strict_arp;
        let ApplyOutcome { set_back, left, .. } = apply(&root, &facts.wanted(), &mut origins);
        (set_back.len(), left)
    };
    settle(false);
    settle(true);
    settle(true);
    assert_eq!(found(), ["1", "2"]);
    assert_eq!(settle(false), (2, Vec::new()));
    assert_eq!(found(), ["0", "0"]);
    assert_eq!(settle(false), (0, Vec::new()), "once");

    // The setting had a value before the start. This process writes it. Then another program
    // changes it.
    fs::write(root.join(ARP[0]), "1\n").unwrap();
    settle(true);
    fs::write(root.join(ARP[1]), "3\n").unwrap();
    let (set_back, left) = settle(false);
    assert_eq!((set_back, left.len()), (0, 1));
    assert!(
        left[0].contains("arp_ignore stays 1")
            && left[0].contains("sysctl -w net.ipv4.conf.all.arp_ignore=0"),
        "{left:?}"
    );
    assert_eq!(found(), ["1\n", "3\n"]);
    // Turning strict ARP on and off again restores the value that preceded strict ARP.
    settle(true);
    assert_eq!(settle(false).0, 1);
    assert_eq!(found(), ["1\n", "3"]);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_failed_required_kernel_setting_ends_the_start() {
    for (step, worst, has_served, ends) in [
        (Step::Prepare, Need::Comfort, true, true),
        (Step::Start, Need::Comfort, false, false),
        (Step::Start, Need::Mode, false, true),
        (Step::Start, Need::Mode, true, false),
        (Step::GoOn, Need::Mode, false, false),
    ] {
        assert_eq!(step.ends(worst, has_served), ends, "{step:?}");
    }
    let (root, mut facts) = kernel("needs", (6, 1));
    assert!(!ProxyMode::Ipvs.definition().has_served(&root));
    let links = root.join("proc/thread-self/net");
    fs::create_dir_all(&links).unwrap();
    let text = "Inter-|   Receive\n    lo:  1  2\nkube-ipvs0:  0  0\n";
    fs::write(links.join("dev"), text).unwrap();
    assert!(ProxyMode::Ipvs.definition().has_served(&root));

    // Replaces the setting's file with a directory, so that writing fails.
    for row in rows() {
        fs::remove_file(root.join(row.path)).unwrap();
        fs::create_dir(root.join(row.path)).unwrap();
    }
    let needs = |facts: &Facts| {
        let failures = apply(&root, &facts.wanted(), &mut Origins::new()).failures;
        let needs = failures.iter();
        needs
            .filter(|failure| failure.row.need != Need::Comfort)
            .map(|failure| failure.row.name())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        needs(&facts),
        ["net.ipv4.vs.conntrack", "net.ipv4.ip_forward"]
    );
    facts.strict_arp = true;
    assert_eq!(needs(&facts).len(), 4);
    (facts.mode, facts.serves_localhost) = (ProxyMode::Iptables, true);
    facts.conntrack.tcp_be_liberal = true;
    assert_eq!(needs(&facts), ["net.ipv4.conf.all.route_localnet"]);
    // The error message groups failures by cause.
    let failures = apply(&root, &facts.wanted(), &mut Origins::new()).failures;
    let text = SysctlErrors(failures).to_string();
    assert_eq!(text.matches("rollout restart").count(), 1, "{text}");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_kernel_setting_error_names_the_setting_and_next_step() {
    let (root, mut facts) = kernel("missing", (6, 1));
    let error_without = |folder: &str, facts: &Facts| {
        fs::remove_dir_all(root.join(folder)).unwrap();
        refusal(&root, facts)
    };
    let expect = |error: String, parts: &[&str]| {
        for part in parts {
            assert!(error.contains(part), "{error}");
        }
    };
    facts.conntrack.max_per_core = 1;
    // Replaces the setting's file with a directory, so that writing fails.
    let max = "proc/sys/net/netfilter/nf_conntrack_max";
    fs::remove_file(root.join(max)).unwrap();
    fs::create_dir(root.join(max)).unwrap();
    let error = refusal(&root, &facts);
    expect(
        error,
        &[
            "net.netfilter.nf_conntrack_max to 1 ",
            "--conntrack-max-per-core=0",
        ],
    );
    let error = error_without("proc/sys/net/ipv4/vs", &facts);
    expect(
        error,
        &[
            "net.ipv4.vs.conntrack",
            "modprobe ip_vs",
            "net.ipv4.vs.expire_nodest_conn",
            "net.netfilter.nf_conntrack_max",
        ],
    );
    fs::remove_dir_all(root).unwrap();
}
