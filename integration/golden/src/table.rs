//! Kinds of kernel state (tables) that golden tests compare.
//!
//! The comparison converts each dump into its relevant lines in a canonical order, without random
//! parts. Two dumps are equal if these lines are equal.

use std::collections::BTreeMap;

use crate::nft;

/// Kind of kernel state, for which a case has one dump. Differences are printed in this order, so
/// that causes come before effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    /// Output of `nft -s list table ip kube-proxy`.
    NftIp,
    /// Output of `nft -s list table ip6 kube-proxy`.
    NftIp6,
    /// Dump of all other nf_tables tables, except those of `iptables-nft`. The daemon must not
    /// change them, so a case has no file for this dump.
    NftOthers,
    /// Output of `nft -s list table` for the shim of IPVS mode and the redirects of userspace mode,
    /// in both IP families.
    NftShim,
    /// Output of `ipvsadm -Sn`.
    IpvsadmSave,
    /// Properties that `ipvsadm -Sn` omits: flags of virtual servers, and connection limits of
    /// destinations.
    IpvsDetails,
    /// Output of `ipset save`.
    IpsetSave,
    /// Output of `iptables-save`, from the iptables backend of the lab.
    IptablesSave,
    /// Output of `ip6tables-save`, from the iptables backend of the lab.
    Ip6tablesSave,
    /// Addresses on `kube-ipvs0`, with prefix lengths, one per line.
    KubeIpvs0Addresses,
    /// Local routes that a kube-proxy has added, as `ip route` prints them.
    LocalRoutes,
    /// Output of `ipvsadm -l --timeout`.
    IpvsTimeouts,
    /// Changed sysctls, as lines `path:value` with the path below `/proc/sys`.
    SysctlChanges,
    /// HTTP responses of the health-check node ports.
    HealthCheckNodePort,
}

/// Chains in which upstream writes rules in random order, because it iterates over a Go map.
const ANY_ORDER: [&str; 5] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-PROXY-FIREWALL",
    "KUBE-IPVS-OUT-FILTER",
];

/// Dumps of the kernel state, by table.
pub(crate) type Dumps = BTreeMap<Table, String>;

impl Table {
    /// Tables that exist in nftables mode, which the test compares after each phase.
    pub(crate) const NFT: [Self; 3] = [Self::NftIp, Self::NftIp6, Self::NftOthers];

    /// File names of the tables in a case's directory.
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

    /// Returns the name of the file with this table's dump in a case's directory.
    pub(crate) fn file(self) -> &'static str {
        let mut files = Self::FILES.iter();
        files
            .find(|(table, _)| *table == self)
            .map_or("", |(_, file)| file)
    }

    /// Returns true if a recording contains this table: not for tables of other programs, and not
    /// for HTTP responses, which are no kernel state.
    pub(crate) fn is_recorded(self) -> bool {
        !matches!(self, Self::NftOthers | Self::HealthCheckNodePort)
    }

    /// Returns the lines of a dump for a recording: without random parts, but in a form that
    /// `iptables-restore`, `nft` and similar tools can load.
    pub(crate) fn recorded(self, dump: &str) -> Vec<String> {
        match self {
            Self::NftIp | Self::NftIp6 | Self::NftShim => dump.lines().map(str::to_owned).collect(),
            Self::IptablesSave | Self::Ip6tablesSave => lines(dump)
                .filter(|line| !line.starts_with('#'))
                .map(|line| match line.split_once(" [") {
                    // Removes the packet and byte counters: `:INPUT ACCEPT [7:420]`.
                    Some((chain, _)) if chain.starts_with(':') => chain.to_owned(),
                    _ => line.to_owned(),
                })
                .collect(),
            _ => self.clean(dump),
        }
    }

    /// Returns the lines of a dump that the test compares, without random parts.
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

/// Returns the virtual servers, sorted, each followed by its destinations, sorted.
fn virtual_servers(dump: &str) -> Vec<String> {
    let mut servers = BTreeMap::<String, Vec<String>>::new();
    // Lines have the form `-A|-a -t|-u|… ADDRESS …`: `-A` for a virtual server, `-a` for a
    // destination.
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
            lines.sort(); // `-A` sorts before `-a`
            lines
        })
        .collect()
}

/// Removes the hash seed and the bucket size from a line of `ipset save`, because the kernel and
/// the `ipset` program choose them.
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

/// Returns the rules and the chains of a dump of `iptables-save`:
///
/// - A rule is a line such as `nat -A KUBE-SERVICES …`. Rules keep their order, except in the
///   chains of `ANY_ORDER`.
/// - A chain is a line such as `nat :KUBE-SERVICES -`. Built-in chains with the policy ACCEPT are
///   omitted, but not their rules.
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
        // A stable sort: rules of one Service port keep their order. Rules without a Service port
        // stay in place.
        for block in rules.chunk_by_mut(|one, other| one.0.is_some() && other.0.is_some()) {
            block.sort_by_key(|(port, _)| *port);
        }
        cleaned.extend(rules.iter().map(|(_, rule)| format!("{table} {rule}")));
    }
    cleaned
}

/// Returns the Service port by which the rules of a chain with random order are sorted: the start
/// of the rule's comment (`default/web:http cluster IP`). In KUBE-IPVS-OUT-FILTER, a rule without a
/// comment is sorted by its text.
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

/// Returns true if the test compares this sysctl. It ignores sysctls of `br_netfilter` and of the
/// daemon's own device, and the number of conntrack entries.
fn is_setting(line: &str) -> bool {
    let key = line.split(':').next().unwrap_or_default();
    !key.starts_with("net/bridge/")
        && !key.contains("/kube-ipvs0/")
        && key != "net/netfilter/nf_conntrack_count"
}

/// Returns the lines of HTTP responses: header names in lower case, headers sorted and without the
/// date.
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

/// Returns the lines that differ, in order, as `expected: …` and `found:    …`.
pub(crate) fn differing(expected: &[String], found: &[String]) -> Vec<String> {
    // Length of the longest common subsequence of `expected` from index i on and `found` from index
    // j on.
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
    fn the_date_and_letter_case_of_http_headers_are_ignored() {
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
