//! The tables that golden tests compare. A dump of a table has random parts, which the comparison
//! ignores.
//!
//! Every dump becomes a list of relevant lines in a canonical order. Two dumps are equal if these
//! lines are equal.

use std::collections::BTreeMap;

use crate::nft;

/// Kind of kernel state, with one dump each. The output shows differences in this order: causes
/// before effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    /// Output of `nft -s list table ip kube-proxy`.
    NftIp,
    /// Output of `nft -s list table ip6 kube-proxy`.
    NftIp6,
    /// Dump of all other nf_tables tables, except those of iptables. The daemon must not change
    /// these tables, so a case has no file for them.
    NftOthers,
    /// Output of `nft -s list table` for the shim of IPVS mode and for the redirects of userspace
    /// mode, both families.
    NftShim,
    /// Output of `ipvsadm -Sn`.
    IpvsadmSave,
    /// Properties that `ipvsadm -Sn` omits: flags of virtual servers, and limits of destinations.
    IpvsDetails,
    /// Output of `ipset save`.
    IpsetSave,
    /// Output of `iptables-save` with the lab's backend.
    IptablesSave,
    /// Output of `ip6tables-save` with the lab's backend.
    Ip6tablesSave,
    /// Addresses on `kube-ipvs0` with their prefix lengths.
    KubeIpvs0Addresses,
    /// Local routes that a proxy has added, as `ip route` prints them.
    LocalRoutes,
    /// Output of `ipvsadm -l --timeout`.
    IpvsTimeouts,
    /// Line `path:value` for each changed file in /proc/sys.
    SysctlChanges,
    /// HTTP responses of the health-check node ports.
    HealthCheckNodePort,
}

/// Chains in which upstream writes the rules of different ports in random order, because it
/// iterates over a hash map.
const ANY_ORDER: [&str; 5] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-PROXY-FIREWALL",
    "KUBE-IPVS-OUT-FILTER",
];

/// Output of the tools, by table.
pub(crate) type Dumps = BTreeMap<Table, String>;

impl Table {
    /// Tables of nftables mode, which the test compares after each phase.
    pub(crate) const NFT: [Self; 3] = [Self::NftIp, Self::NftIp6, Self::NftOthers];

    /// Tables with the names of their files in a case.
    const FILES: [(Self, &'static str); 14] = [
        (Self::NftIp, "nft-ip"),
        (Self::NftIp6, "nft-ip6"),
        (Self::NftOthers, "nft-others"),
        (Self::NftShim, "nft-shim"),
        (Self::IpvsadmSave, "ipvsadm-save"),
        (Self::IpvsDetails, "ipvs-details"),
        (Self::IpsetSave, "ipset-save"),
        (Self::IptablesSave, "iptables-save"),
        (Self::Ip6tablesSave, "ip6tables-save"),
        (Self::KubeIpvs0Addresses, "kube-ipvs0-addresses"),
        (Self::LocalRoutes, "local-routes"),
        (Self::IpvsTimeouts, "ipvs-timeouts"),
        (Self::SysctlChanges, "sysctl-changes"),
        (Self::HealthCheckNodePort, "health-check-node-port"),
    ];

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::FILES.iter().map(|(table, _)| *table)
    }

    /// Returns the name of this table's file in a case.
    pub(crate) fn file(self) -> &'static str {
        let mut files = Self::FILES.iter();
        files
            .find(|(table, _)| *table == self)
            .map_or("", |(_, file)| file)
    }

    /// Returns true if recordings contain this table. Recordings exclude tables of other programs
    /// and HTTP responses, because they are not kernel state of the proxy.
    pub(crate) fn is_recorded(self) -> bool {
        !matches!(self, Self::NftOthers | Self::HealthCheckNodePort)
    }

    /// Returns a dump without its random parts, in a form that an operator's tools can load.
    pub(crate) fn recorded(self, dump: &str) -> Vec<String> {
        match self {
            Self::NftIp | Self::NftIp6 | Self::NftShim => dump.lines().map(str::to_owned).collect(),
            Self::IptablesSave | Self::Ip6tablesSave => lines(dump)
                .filter(|line| !line.starts_with('#'))
                .map(|line| match line.split_once(" [") {
                    // Removes the packet counters: `:INPUT ACCEPT [7:420]`.
                    Some((chain, _)) if chain.starts_with(':') => chain.to_owned(),
                    _ => line.to_owned(),
                })
                .collect(),
            _ => self.clean(dump),
        }
    }

    /// Returns the relevant lines of a dump, without its random parts.
    pub(crate) fn clean(self, dump: &str) -> Vec<String> {
        match self {
            Self::NftIp | Self::NftIp6 | Self::NftShim => nft::table(dump),
            Self::IpvsadmSave => virtual_servers(dump),
            Self::IpsetSave => sorted(dump, |line| Some(without_seeds(line))),
            Self::IptablesSave | Self::Ip6tablesSave => rules(dump),
            Self::KubeIpvs0Addresses => sorted(dump, |line| {
                (!line.starts_with("fe80:")).then(|| line.to_owned())
            }),
            Self::IpvsDetails | Self::LocalRoutes => sorted(dump, |line| Some(line.to_owned())),
            Self::NftOthers | Self::IpvsTimeouts => lines(dump).map(str::to_owned).collect(),
            Self::SysctlChanges => sorted(dump, |line| is_setting(line).then(|| line.to_owned())),
            Self::HealthCheckNodePort => answers(dump),
        }
    }
}

fn lines(dump: &str) -> impl Iterator<Item = &str> {
    dump.lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
}

fn sorted(dump: &str, clean: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut lines: Vec<String> = lines(dump).filter_map(clean).collect();
    lines.sort();
    lines
}

/// Returns the virtual servers, sorted. After each virtual server follow its destinations, sorted.
fn virtual_servers(dump: &str) -> Vec<String> {
    let mut servers = BTreeMap::<String, Vec<String>>::new();
    // A line has the form `-A|-a -t|-u|… ADDRESS …`.
    for line in lines(dump) {
        let key = line
            .split_whitespace()
            .skip(1)
            .take(2)
            .collect::<Vec<_>>()
            .join(" ");
        servers.entry(key).or_default().push(line.to_owned());
    }
    servers
        .into_values()
        .flat_map(|mut lines| {
            lines.sort(); // `-A` is before `-a`
            lines
        })
        .collect()
}

/// Removes the hash seed and the bucket size of a set. The `ipset` program and the kernel choose
/// these values.
fn without_seeds(line: &str) -> String {
    let mut words = Vec::new();
    let mut rest = line.split_whitespace();
    while let Some(word) = rest.next() {
        if ["initval", "bucketsize"].contains(&word) {
            rest.next();
        } else {
            words.push(word);
        }
    }
    words.join(" ")
}

/// Returns the rules and the chains of each table.
///
/// - A rule is `nat -A KUBE-SERVICES …`. Rules keep their order, except in the chains of
///   `ANY_ORDER`.
/// - A chain is `nat :KUBE-SERVICES -`. Chains with the policy ACCEPT are omitted, but their rules
///   are not.
fn rules(dump: &str) -> Vec<String> {
    let mut table = "";
    let mut chains = BTreeMap::<(&str, &str), Vec<(Option<&str>, &str)>>::new();
    let mut cleaned = Vec::new();
    for line in lines(dump) {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split_whitespace();
            if let (Some(name), Some(policy)) = (words.next(), words.next())
                && policy != "ACCEPT"
            {
                cleaned.push(format!("{table} :{name} {policy}"));
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split_whitespace().next().unwrap_or_default();
            chains
                .entry((table, chain))
                .or_default()
                .push((service_port(chain, rule), line));
        }
    }
    cleaned.sort();
    for ((table, _), mut rules) in chains {
        // The sort is stable, so the rules of one port keep their order. Rules that belong to no
        // port stay in place.
        for block in rules.chunk_by_mut(|one, other| one.0.is_some() && other.0.is_some()) {
            block.sort_by_key(|(port, _)| *port);
        }
        cleaned.extend(rules.iter().map(|(_, rule)| format!("{table} {rule}")));
    }
    cleaned
}

/// Returns the sort key of a rule in a chain with random order: the Service port at the start of
/// its comment (`default/web:http cluster IP`). In KUBE-IPVS-OUT-FILTER, a rule without a comment
/// is its own key.
fn service_port<'a>(chain: &str, rule: &'a str) -> Option<&'a str> {
    if !ANY_ORDER.contains(&chain) {
        return None;
    }
    let Some((_, comment)) = rule.split_once("--comment ") else {
        return (chain == "KUBE-IPVS-OUT-FILTER").then_some(rule);
    };
    comment
        .trim_start_matches('"')
        .split([' ', '"'])
        .next()
        .filter(|word| word.contains('/'))
}

/// Returns true if the tests compare this kernel setting. They ignore settings that `br_netfilter`
/// adds, settings of a device that the daemon creates, and the number of conntrack entries.
fn is_setting(line: &str) -> bool {
    let key = line.split(':').next().unwrap_or_default();
    !key.starts_with("net/bridge/")
        && !key.contains("/kube-ipvs0/")
        && key != "net/netfilter/nf_conntrack_count"
}

/// Returns HTTP responses one after another: the header names in lower case, the headers sorted,
/// and no date.
fn answers(dump: &str) -> Vec<String> {
    let mut cleaned: Vec<String> = Vec::new();
    let mut headers: Option<Vec<String>> = None;
    for line in dump.lines().map(str::trim_end) {
        if line.starts_with("HTTP/") {
            cleaned.push(line.to_owned());
            headers = Some(Vec::new());
        } else if let Some(mut some) = headers.take() {
            if line.is_empty() {
                some.sort();
                cleaned.append(&mut some);
            } else {
                some.extend(header(line));
                headers = Some(some);
            }
        } else if !line.is_empty() {
            cleaned.push(line.to_owned());
        }
    }
    cleaned.extend(headers.into_iter().flatten());
    cleaned
}

fn header(line: &str) -> Option<String> {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    let name = name.to_ascii_lowercase();
    (name != "date").then(|| format!("{name}: {}", value.trim()))
}

/// Returns the differing lines in order: `expected: …` and `found:    …`.
pub(crate) fn differing(expected: &[String], found: &[String]) -> Vec<String> {
    // Length of the longest common subsequence of the lists from index i and index j on.
    let mut common = vec![vec![0_usize; found.len() + 1]; expected.len() + 1];
    let at = |common: &Vec<Vec<usize>>, i: usize, j: usize| {
        common
            .get(i)
            .and_then(|row| row.get(j))
            .copied()
            .unwrap_or(0)
    };
    for (i, line) in expected.iter().enumerate().rev() {
        for (j, other) in found.iter().enumerate().rev() {
            let longest = if line == other {
                at(&common, i + 1, j + 1) + 1
            } else {
                at(&common, i + 1, j).max(at(&common, i, j + 1))
            };
            if let Some(cell) = common.get_mut(i).and_then(|row| row.get_mut(j)) {
                *cell = longest;
            }
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::new();
    loop {
        match (expected.get(i), found.get(j)) {
            (Some(line), Some(other)) if line == other => (i, j) = (i + 1, j + 1),
            (Some(line), other)
                if other.is_none() || at(&common, i + 1, j) >= at(&common, i, j + 1) =>
            {
                lines.push(format!("expected: {line}"));
                i += 1;
            }
            (_, Some(other)) => {
                lines.push(format!("found:    {other}"));
                j += 1;
            }
            (_, None) => return lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(table: Table, one: &str, other: &str) -> bool {
        table.clean(one) == table.clean(other)
    }

    #[test]
    fn each_table_has_its_own_file_and_all_tables_are_sorted() {
        let mut all: Vec<Table> = Table::all().collect();
        all.sort();
        assert_eq!(all, Table::all().collect::<Vec<_>>());
        let files: std::collections::BTreeSet<_> = all.iter().map(|table| table.file()).collect();
        assert_eq!(files.len(), all.len());
    }

    #[test]
    fn the_order_of_virtual_servers_is_ignored() {
        let one = "-A -t 10.0.0.2:80 -s rr\n-a -t 10.0.0.2:80 -r 1.1.1.2:1 -m -w 1\n-a -t 10.0.0.2:80 -r 1.1.1.1:1 -m -w 1\n-A -t 10.0.0.1:80 -s rr\n";
        let cleaned = Table::IpvsadmSave.clean(one);
        assert_eq!(cleaned.first().unwrap(), "-A -t 10.0.0.1:80 -s rr");
        assert_eq!(
            cleaned.get(2).unwrap(),
            "-a -t 10.0.0.2:80 -r 1.1.1.1:1 -m -w 1"
        );
        assert!(!equal(
            Table::IpvsadmSave,
            one,
            &one.replace("1.1.1.2:1 -m -w 1", "1.1.1.2:1 -m -w 0")
        ));
    }

    #[test]
    fn random_seeds_of_ipsets_are_ignored() {
        let one = "create A hash:ip family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0xa2\nadd A 1.1.1.1\n";
        let other = "add A 1.1.1.1\ncreate A hash:ip family inet hashsize 1024 maxelem 65536";
        assert!(equal(Table::IpsetSave, one, other));
        assert!(!equal(
            Table::IpsetSave,
            one,
            &other.replace("65536", "131072")
        ));
    }

    #[test]
    fn an_empty_built_in_chain_counts_only_if_its_policy_is_not_accept() {
        let empty = "*mangle\n:INPUT ACCEPT [0:0]\nCOMMIT\n*nat\n:KUBE-A - [0:0]\nCOMMIT\n";
        assert_eq!(Table::IptablesSave.clean(empty), ["nat :KUBE-A -"]);
        assert_eq!(
            Table::IptablesSave.clean("*filter\n:INPUT DROP [3:4]\n"),
            ["filter :INPUT DROP"]
        );
    }

    #[test]
    fn the_order_of_rules_is_compared_except_between_service_ports() {
        let rule = |chain: &str, comment: &str, verdict: &str| {
            format!("-A {chain} -m comment --comment \"{comment}\" -j {verdict}\n")
        };
        let same = |one: &[&str], other: &[&str]| {
            let dump = |rules: &[&str]| format!("*nat\n{}COMMIT\n", rules.concat());
            equal(Table::IptablesSave, &dump(one), &dump(other))
        };
        let nodeports = |comment, verdict| rule("KUBE-NODEPORTS", comment, verdict);
        let [local, web, dns, last] = &[
            nodeports("default/web", "LOCAL"),
            nodeports("default/web", "WEB"),
            nodeports("default/dns:x health check", "DNS"),
            nodeports("this must be the last rule", "LAST"),
        ];
        assert!(same(&[local, web, dns, last], &[dns, local, web, last]));
        assert!(!same(&[local, web, dns, last], &[web, local, dns, last]));
        assert!(!same(&[web, dns, last], &[web, last, dns]));

        let of_one_service = |verdict| rule("KUBE-SVC-X", "default/web", verdict);
        let [one, two] = &[of_one_service("ONE"), of_one_service("TWO")];
        assert!(!same(&[one, two], &[two, one]));

        let [one, two] = ["1.1.1.1", "1.1.1.2"]
            .map(|vip| format!("-A KUBE-IPVS-OUT-FILTER -s {vip}/32 -j DROP\n"));
        assert!(same(&[&one, &two], &[&two, &one]));
        assert!(!same(&[&one, &two], &[&one]));
    }

    #[test]
    fn settings_outside_the_proxys_control_are_not_compared() {
        let changes = "net/ipv4/ip_forward:1\nnet/bridge/bridge-nf-call-iptables:1\nnet/netfilter/nf_conntrack_count:3\nnet/ipv4/conf/kube-ipvs0/forwarding:1\n";
        assert_eq!(
            Table::SysctlChanges.clean(changes),
            ["net/ipv4/ip_forward:1"]
        );
    }

    #[test]
    fn the_date_and_case_of_headers_are_ignored() {
        let one = "HTTP/1.1 200 OK\r\nX-A: b\r\nDate: today\r\nContent-Length: 2\r\n\r\n{}\r\nHTTP/1.1 503 X\r\n\r\nno\r\n";
        let other = "HTTP/1.1 200 OK\ncontent-length: 2\nx-a: b\n\n{}\n\nHTTP/1.1 503 X\n\nno\n";
        assert!(equal(Table::HealthCheckNodePort, one, other));
        assert!(!equal(
            Table::HealthCheckNodePort,
            one,
            &other.replace("x-a: b", "x-a: B")
        ));
        assert!(!equal(
            Table::HealthCheckNodePort,
            one,
            &other.replace("{}", "{ }")
        ));
    }

    #[test]
    fn different_lines_are_listed_in_order() {
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(differing(&lines("a b c"), &lines("a b c")).is_empty());
        assert_eq!(
            differing(&lines("a b c d"), &lines("a x c d e")),
            ["expected: b", "found:    x", "found:    e"]
        );
        assert_eq!(differing(&lines("a b"), &lines("b a")).len(), 2);
        assert_eq!(differing(&lines("a"), &[]), ["expected: a"]);
    }
}
