//! The command `kube-proxy services`, which shows Services with their addresses and endpoints.

use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use view::{
    ANOTHER_PROGRAM, Address, AddressKind, Condition, Counters, Endpoint, Port, Service,
    ServiceList,
};

use super::names::{check_namespace, encoded, not_found, qualified, without_kind};
use super::table::{Cell, TextTable, Tone, coloured, short, shown};
use super::virtual_servers::VirtualServers;
use super::{
    EXIT_NO_DAEMON, EXIT_WELL, EXIT_WRONG, Failure, Form, Output, Patience, Printed, Program,
    has_colours, socket,
};

/// Examples and exit statuses, printed below the help of `services`.
pub(super) const HELP: &str = "Examples:
  kube-proxy services                          all Service ports
  kube-proxy services -n kube-system -o wide   one namespace, with counters
  kube-proxy services default/web              one Service with its endpoints
  kube-proxy services svc/web -n shop          the same, as kubectl names it
  kube-proxy services -o name                  a line for each: NAMESPACE/NAME
  kube-proxy services default/web -o json | jq '.ports[].endpoints[].why'

ENDPOINTS counts the endpoints that this node sends traffic to, the ready ones,
and all. It asks the daemon of this network namespace, as root. Without a
daemon it lists the virtual servers of IPVS, without names, and exits with 3.

Exit status: 0, no errors; 1, a Service has errors, or does not exist; 2, wrong
usage, or unreadable; 3, no daemon answers.";

/// Maximum number of Services in one page of a list without endpoints.
const PAGE: usize = 5_000;
/// Maximum number of Services in one page of a list with endpoints.
const PAGE_WITH_ENDPOINTS: usize = 500;

/// Arguments of `services`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// One Service, with its endpoints: NAMESPACE/NAME, or NAME or svc/NAME with -n
    #[arg(value_name = "NAMESPACE/NAME")]
    name: Option<String>,
    /// Namespace of the Services, also of NAME
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Services of all namespaces, as without -n
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "name"])]
    all_namespaces: bool,
    /// Services with this text in NAMESPACE/NAME
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    search: String,
    /// Form of the answer: wide has more columns; json and yaml have all fields (docs/api.md); name
    /// has NAMESPACE/NAME
    #[arg(short, long, value_enum)]
    output: Option<ListOutput>,
    #[command(flatten)]
    patience: Patience,
}

/// Value of the option `-o` of the subcommand `services`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ListOutput {
    Wide,
    Json,
    Yaml,
    Name,
}

impl Arguments {
    fn form(&self) -> Form {
        let output = self.output.and_then(|output| match output {
            ListOutput::Wide => Some(Output::Wide),
            ListOutput::Json => Some(Output::Json),
            ListOutput::Yaml => Some(Output::Yaml),
            ListOutput::Name => None,
        });
        Form {
            output,
            patience: self.patience,
        }
    }

    fn has_names_alone(&self) -> bool {
        self.output == Some(ListOutput::Name)
    }
}

/// Renders one Service, or a list of Services. If no daemon runs, lists the virtual servers in the
/// kernel.
pub(super) fn services(arguments: &Arguments, program: &Program) -> Printed {
    let answer = match &arguments.name {
        Some(name) => one(name, arguments),
        None => list(arguments),
    };
    match answer {
        // Without a daemon, lists virtual servers. The kernel does not know the names of Services.
        Err(Failure::NoDaemon) if arguments.name.is_none() => {
            without_daemon(arguments.form(), program)
        }
        answer => answer,
    }
}

fn one(name: &str, arguments: &Arguments) -> Printed {
    let (form, timeout) = (arguments.form(), arguments.patience.timeout);
    let is_qualified = without_kind(name).contains('/');
    let (namespace, name) = qualified(name, arguments.namespace.as_deref())?;
    let path = format!("/api/v1/services/{}/{}", encoded(namespace), encoded(name));
    let service: Service = match socket::get(&path, timeout) {
        Err(Failure::NotFound(why)) if !is_qualified => {
            return Err(not_found(&why, name, timeout));
        }
        answer => answer?,
    };
    let text = match form.of(&service)? {
        Some(text) => text,
        None if arguments.has_names_alone() => format!("{}\n", service.name),
        None => render_one(&service, form.is_wide(), has_colours()),
    };
    Ok((text, code([&service])))
}

fn list(arguments: &Arguments) -> Printed {
    let (form, timeout) = (arguments.form(), arguments.patience.timeout);
    if let Some(namespace) = &arguments.namespace {
        check_namespace(namespace)?;
    }
    let is_table = form.is_table();
    let limit = if is_table { PAGE } else { PAGE_WITH_ENDPOINTS };
    let asked = format!(
        "/api/v1/services?namespace={}&search={}&limit={limit}&endpoints={}&counters={}",
        encoded(arguments.namespace.as_deref().unwrap_or_default()),
        encoded(&arguments.search),
        !is_table,
        !is_table || form.is_wide(),
    );
    let mut all: ServiceList = socket::get(&asked, timeout)?;
    while let Some(after) = all.next.take() {
        let next = format!("{asked}&after={}", encoded(&after));
        let page: ServiceList = socket::get(&next, timeout)?;
        all.items.extend(page.items);
        all.next = page.next;
        let fresh = page.notes.into_iter();
        let fresh: Vec<_> = fresh.filter(|note| !all.notes.contains(note)).collect();
        all.notes.extend(fresh);
    }
    let text = match form.of(&all)? {
        Some(text) => text,
        None if arguments.has_names_alone() => names(&all),
        None => render_list(&all, form.is_wide(), has_colours()),
    };
    Ok((text, code(&all.items)))
}

fn names(list: &ServiceList) -> String {
    let names = list
        .items
        .iter()
        .map(|service| format!("{}\n", service.name));
    names.collect()
}

fn code<'a>(services: impl IntoIterator<Item = &'a Service>) -> u8 {
    let mut services = services.into_iter();
    if services.any(|service| !service.errors.is_empty()) {
        EXIT_WRONG
    } else {
        EXIT_WELL
    }
}

fn without_daemon(form: Form, program: &Program) -> Printed {
    let servers = VirtualServers::read(&mut *(program.virtual_servers)()).map_err(|error| {
        let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
        if causes.any(|cause| matches!(cause, ipvs_netlink::Error::FamilyMissing)) {
            return Failure::NoDaemon;
        }
        // Returns the read error, because exit status 3 (no daemon) would hide it.
        Failure::Unreadable(format!("{}, and {error:#}", Failure::NoDaemon))
    })?;
    let text = match form.of(&servers)? {
        Some(text) => text,
        None => servers.render(has_colours()),
    };
    Ok((text, EXIT_NO_DAEMON))
}

// ---- a table of Services ----

fn render_list(list: &ServiceList, is_wide: bool, has_colours: bool) -> String {
    let mut heads = vec![
        "NAMESPACE",
        "NAME",
        "TYPE",
        "PORT",
        "ADDRESSES",
        "ENDPOINTS",
    ];
    if is_wide {
        heads.extend(["POLICY", "CONNS", "ACTIVE", "PACKETS", "BYTES"]);
    }
    heads.push("ERRORS");
    let mut table = TextTable::new(heads);
    for service in &list.items {
        for port in &service.ports {
            table.row(row(service, port, is_wide));
        }
    }
    let mut text = if list.items.is_empty() {
        "No Services found.\n".to_owned()
    } else {
        table.render("", has_colours)
    };
    text.push_str(&notes(&list.notes, has_colours));
    text
}

fn row(service: &Service, port: &Port, is_wide: bool) -> Vec<Cell> {
    let counts = port.endpoint_counts;
    let tone = match (counts.used, counts.total) {
        (0, 0) => Tone::Faint,
        (0, _) => Tone::Bad,
        _ => Tone::Plain,
    };
    let drains = match counts.draining {
        0 => String::new(),
        count => format!(", {count} draining"),
    };
    let endpoints = format!("{}/{}/{}{drains}", counts.used, counts.ready, counts.total);
    let mut cells: Vec<Cell> = vec![
        (&*service.name.namespace).into(),
        (&*service.name.name).into(),
        (&*service.kind).into(),
        port_text(port).into(),
        addresses_text(port).into(),
        Cell::of(endpoints, tone),
    ];
    if is_wide {
        cells.push(policy(service).into());
        let counters = port.counters.as_ref();
        cells.extend(counted(counters));
    }
    let errors = match &*service.errors {
        [] => Cell::of("-", Tone::Faint),
        [one] => Cell::of(&**one, Tone::Bad),
        [first, more @ ..] => Cell::of(format!("{first} (and {} more)", more.len()), Tone::Bad),
    };
    cells.push(errors);
    cells
}

/// Formats a Service port, such as `http 80/TCP`.
fn port_text(port: &Port) -> String {
    let Port {
        name,
        protocol,
        port,
        ..
    } = port;
    if name.is_empty() {
        format!("{port}/{protocol}")
    } else {
        format!("{name} {port}/{protocol}")
    }
}

/// Formats the addresses and the node port of a Service port. Omits the port number, which has its
/// own column in the table.
fn addresses_text(port: &Port) -> String {
    let own = port.addresses.iter();
    let own = own.filter(|address| address.kind != AddressKind::NodePort);
    let mut parts: Vec<&str> = own
        .map(|address| {
            let (ip, _) = address.at.rsplit_once(':').unwrap_or((&address.at, ""));
            ip.trim_start_matches('[').trim_end_matches(']')
        })
        .collect();
    let node_port = port.node_port.map(|number| format!("node:{number}"));
    parts.extend(node_port.as_deref());
    parts.join(",")
}

fn policy(service: &Service) -> String {
    let (internal, external) = (
        &service.internal_traffic_policy,
        &service.external_traffic_policy,
    );
    if internal == external {
        internal.clone()
    } else {
        format!("{internal}, external {external}")
    }
}

/// Formats connections, active connections, packets and bytes as four cells. Packets and bytes are
/// sums over both directions.
fn counted(counters: Option<&Counters>) -> [Cell; 4] {
    let both = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (None, None) => None,
        (one, other) => Some(
            one.unwrap_or_default()
                .saturating_add(other.unwrap_or_default()),
        ),
    };
    let text = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), short).into();
    let Some(of) = counters else {
        return [(); 4].map(|()| "-".into());
    };
    [
        text(Some(of.connections)),
        text(of.active),
        text(both(of.packets_in, of.packets_out)),
        text(both(of.bytes_in, of.bytes_out)),
    ]
}

// ---- one Service ----

fn render_one(service: &Service, is_wide: bool, has_colours: bool) -> String {
    let mut head = TextTable::default();
    let mut line = |name: &str, value: String| head.row([name.into(), value.into()]);
    line("Name", service.name.to_string());
    line("Type", service.kind.clone());
    line("Policy", policy(service));
    if let Some(seconds) = service.session_affinity_seconds {
        line("Affinity", format!("ClientIP, {seconds} s"));
    }
    if !service.source_ranges.is_empty() {
        line("Sources", service.source_ranges.join(", "));
    }
    if let Some(port) = service.health_check_node_port {
        line("Health check", format!("node port {port}"));
    }
    for option in &service.options {
        line("Option", format!("{}: {}", option.annotation, option.value));
    }
    let mut text = head.render("", has_colours);
    for error in &service.errors {
        let mark = coloured("Error:", Tone::Bad, has_colours);
        // Ignores the result, because a write to a String cannot fail.
        let _ = writeln!(text, "{mark} {}", shown(error));
    }
    for port in &service.ports {
        let _ = writeln!(text, "\nPort {}", shown(&port_text(port)));
        text.push_str(&addresses(port).render("  ", has_colours));
        if port.endpoints.is_empty() {
            let none = coloured("no endpoints", Tone::Odd, has_colours);
            let _ = writeln!(text, "\n  {none}");
        } else {
            text.push('\n');
            let table = endpoints(&port.endpoints, is_wide);
            text.push_str(&table.render("  ", has_colours));
        }
    }
    text.push_str(&notes(&service.notes, has_colours));
    text
}

fn addresses(port: &Port) -> TextTable {
    let mut table = TextTable::new([
        "ADDRESS",
        "KIND",
        "SCHEDULER",
        "CONNS",
        "ACTIVE",
        "PACKETS",
        "BYTES",
        "",
    ]);
    for address in &port.addresses {
        table.row(address_row(address));
    }
    table
}

fn address_row(address: &Address) -> Vec<Cell> {
    let kind = match address.kind {
        AddressKind::ClusterIp => "cluster IP",
        AddressKind::ExternalIp => "external IP",
        AddressKind::LoadBalancerIp => "load balancer IP",
        AddressKind::NodePort => "node port",
    };
    let mut cells: Vec<Cell> = vec![
        (&*address.at).into(),
        kind.into(),
        address.scheduler.as_deref().unwrap_or("-").into(),
    ];
    cells.extend(counted(address.counters.as_ref()));
    let lost = address.lost_to.as_ref();
    cells.extend(lost.map(|winner| {
        let verb = if winner == ANOTHER_PROGRAM {
            "held by"
        } else {
            "served for"
        };
        Cell::of(format!("{verb} {winner}"), Tone::Bad)
    }));
    cells
}

fn endpoints(endpoints: &[Endpoint], is_wide: bool) -> TextTable {
    let mut heads = vec!["ENDPOINT", "POD", "NODE", "ZONE", "STATE", "IN"];
    if is_wide {
        heads.extend(["WEIGHT", "CONNS", "ACTIVE", "PACKETS", "BYTES"]);
    } else {
        heads.extend(["WEIGHT", "CONNS"]);
    }
    heads.push("WHY");
    let mut table = TextTable::new(heads);
    for endpoint in endpoints {
        table.row(endpoint_row(endpoint, is_wide));
    }
    table
}

fn endpoint_row(endpoint: &Endpoint, is_wide: bool) -> Vec<Cell> {
    let known = |text: &Option<String>| text.as_deref().unwrap_or("-").to_owned();
    let (state, tone) = match endpoint.condition {
        Condition::Ready => ("ready", Tone::Good),
        Condition::ServingTerminating => ("terminating, serving", Tone::Odd),
        Condition::Terminating => ("terminating", Tone::Faint),
        Condition::NotReady => ("not ready", Tone::Odd),
        Condition::Draining => ("draining", Tone::Odd),
        Condition::Left => ("left", Tone::Bad),
    };
    let within = match (endpoint.cluster, endpoint.local_policy) {
        (true, true) => Cell::of("yes", Tone::Good),
        (true, false) => Cell::of("Cluster", Tone::Good),
        (false, true) => Cell::of("Local", Tone::Good),
        (false, false) => Cell::of("no", Tone::Odd),
    };
    let node = if endpoint.local {
        format!("{} (here)", known(&endpoint.node))
    } else {
        known(&endpoint.node)
    };
    let weight = endpoint.weight.map(|weight| weight.to_string());
    let mut cells: Vec<Cell> = vec![
        (&*endpoint.at).into(),
        known(&endpoint.pod).into(),
        node.into(),
        known(&endpoint.zone).into(),
        Cell::of(state, tone),
        within,
        known(&weight).into(),
    ];
    let counted = counted(endpoint.counters.as_ref()).into_iter();
    cells.extend(counted.take(if is_wide { 4 } else { 1 }));
    cells.push((&*endpoint.why).into());
    cells
}

fn notes(notes: &[String], has_colours: bool) -> String {
    let mark = coloured("Note:", Tone::Odd, has_colours);
    let notes = notes
        .iter()
        .map(|note| format!("\n{mark} {}\n", shown(note)));
    notes.collect()
}

#[cfg(test)]
mod tests;
