//! What a commit costs in the kernel, by a bare loader.

mod first;
pub(crate) mod layout;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use self::layout::{Content, Layout, SERVICE_KEY, key, vip};
use self::wire::{CONCAT, Data, Element, INTERVAL, IPV4, Kernel, SetOf, Transaction};
use anyhow::{Context as _, Result};
use clap::Args;

/// Measures what the kernel does for changes of a table of nftables mode
#[derive(Debug, Args)]
pub(crate) struct Cost {
    /// Measure the first packet of a flow instead: in the lab
    #[arg(long)]
    first: bool,
    /// Measure a packet of an established flow instead: in the lab
    #[arg(long)]
    established: bool,
    #[arg(long, value_enum, value_delimiter = ',', default_value = "upstream")]
    layout: Vec<Layout>,
    #[arg(long, value_delimiter = ',', default_value = "100,10000")]
    services: Vec<u32>,
    #[arg(long, default_value_t = 2)]
    endpoints: u32,
    /// Only operations whose names contain one of these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[arg(long, default_value_t = 200)]
    repeat: u32,
    /// Seconds for one operation.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Milliseconds between two transactions.
    #[arg(long, default_value_t = 2)]
    pause: u64,
    /// Services to a transaction when the table is filled.
    #[arg(long, default_value_t = 1000)]
    chunk: u32,
    /// Elements of interval sets
    #[arg(long, value_delimiter = ',', default_value = "")]
    intervals: Vec<String>,
}

pub(crate) fn run(options: &Cost) -> Result<()> {
    if options.first || options.established {
        for &services in &options.services {
            first::measure(options, services)?;
        }
        return Ok(());
    }
    let kernel = Kernel::open()?;
    for &services in &options.services {
        for &layout in &options.layout {
            let content = Content {
                layout,
                services,
                endpoints: options.endpoints,
                protocol: UDP,
            };
            measure(&kernel, options, content)?;
        }
    }
    for elements in options
        .intervals
        .iter()
        .filter_map(|text| text.parse().ok())
    {
        intervals(&kernel, options, elements)?;
    }
    Ok(())
}

fn measure(kernel: &Kernel, options: &Cost, content: Content) -> Result<()> {
    let spent = fill(kernel, content, options.chunk)?;
    let name = format!(
        "{:?} {}x{}",
        content.layout, content.services, content.endpoints
    );
    println!("{name:<22} {:<28} {:10.3} s", "fill", spent.as_secs_f64());
    for (operation, make) in operations(content) {
        if !options.only.is_empty() && !options.only.iter().any(|only| operation.contains(only)) {
            continue;
        }
        repeat(kernel, options, &name, operation, &make)?;
    }
    let mut to = Transaction::new(IPV4);
    to.delete_table();
    let took = kernel.send(&to.finish())?;
    println!(
        "{name:<22} {:<28} {:10.3} s",
        "delete table",
        took.as_secs_f64()
    );
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

/// What is sent by it needs no answer.
const UDP: u8 = 17;

/// Fills an empty kernel: how long its part took.
fn fill(kernel: &Kernel, content: Content, chunk: u32) -> Result<Duration> {
    let mut spent = kernel.send(&content.base(IPV4).finish())?;
    let mut service = 0;
    while service < content.services {
        let mut to = Transaction::new(IPV4);
        let next = content.services.min(service + chunk);
        for service in service..next {
            content.add_service(&mut to, service, content.endpoints);
        }
        spent += kernel.send(&to.finish())?;
        service = next;
    }
    Ok(spent)
}

/// Writes what an operation does at a turn.
type Write = Box<dyn Fn(&mut Transaction, u32)>;
/// The transaction of an operation at a turn.
type Make = Box<dyn Fn(u32) -> Transaction>;

/// Operations and their transactions; those of odd turns undo what the one before did.
fn operations(content: Content) -> Vec<(&'static str, Make)> {
    let n = content.services;
    let e = content.endpoints;
    let pick = move |turn: u32| turn.wrapping_mul(7919) % n;
    let mut all: Vec<(&'static str, Make)> = Vec::new();
    let mut with = |name, make: Write| {
        all.push((
            name,
            Box::new(move |turn| {
                let mut to = Transaction::new(IPV4);
                make(&mut to, turn);
                to
            }),
        ));
    };
    with("empty", Box::new(|_, _| {}));
    with(
        "change endpoint",
        Box::new(move |to, turn| content.change_endpoint(to, pick(turn), turn + 1)),
    );
    with(
        "grow/shrink",
        Box::new(move |to, turn| {
            if turn % 2 == 0 {
                content.resize(to, pick(turn), e, e + 1);
            } else {
                content.resize(to, pick(turn - 1), e + 1, e);
            }
        }),
    );
    with(
        "add/remove service",
        Box::new(move |to, turn| {
            if turn % 2 == 0 {
                content.add_service(to, n, e);
            } else {
                content.remove_service(to, n, e);
            }
        }),
    );
    if content.has_chain() {
        with(
            "add/delete empty chain",
            Box::new(move |to, turn| {
                if turn % 2 == 0 {
                    to.chain("service-NEW");
                } else {
                    to.delete_chain("service-NEW");
                }
            }),
        );
    }
    let spare = n + 5;
    let services = |data: fn() -> Data| Element::new(key(0x000f_0000, UDP), data());
    let nodeport = |data: fn() -> Data| Element::new(vec![6, 0, 0, 0, 0x75, 0x30, 0, 0], data());
    let reject = || Data::Goto("reject-chain".into());
    let drop = || Data::Drop;
    let mut element = |name, set: &'static str, make: Box<dyn Fn() -> Element>| {
        with(
            name,
            Box::new(move |to, turn| {
                if turn % 2 == 0 {
                    to.add(set, 0, &[make()]);
                } else {
                    let mut gone = make();
                    gone.data = Data::None;
                    to.delete(set, &[gone]);
                }
            }),
        );
    };
    element(
        "element cluster-ips",
        "cluster-ips",
        Box::new(move || Element::new(vip(spare).into(), Data::None)),
    );
    element(
        "element hairpin",
        "hairpin-connections",
        Box::new(|| Element::new(vec![1; 16], Data::None)),
    );
    element(
        "element no-ep drop",
        "no-endpoint-services",
        Box::new(move || services(drop)),
    );
    element(
        "element no-ep goto",
        "no-endpoint-services",
        Box::new(move || services(reject)),
    );
    element(
        "element firewall goto",
        "firewall-ips",
        Box::new(move || services(reject)),
    );
    element(
        "element nodeports goto",
        "service-nodeports",
        Box::new(move || nodeport(reject)),
    );
    element(
        "element no-ep-nodeports goto",
        "no-endpoint-nodeports",
        Box::new(move || nodeport(reject)),
    );
    element(
        "element service-ips goto",
        "service-ips",
        Box::new(move || services(reject)),
    );
    element(
        "element service-ips drop",
        "service-ips",
        Box::new(move || services(drop)),
    );
    with(
        "rule without validate",
        Box::new(move |to, turn| {
            if turn % 2 == 0 {
                to.rule("reject-chain", |rule| {
                    rule.payload(1, 1, 9, 1);
                    rule.compare(1, 0, &[6]);
                });
            } else {
                to.flush_chain("reject-chain");
            }
        }),
    );
    with(
        "rule with validate",
        Box::new(move |to, turn| {
            if turn % 2 == 0 {
                to.rule("reject-chain", |rule| {
                    rule.reject();
                });
            } else {
                to.flush_chain("reject-chain");
            }
        }),
    );
    all
}

fn repeat(kernel: &Kernel, options: &Cost, name: &str, operation: &str, make: &Make) -> Result<()> {
    let begun = Instant::now();
    let mut took: BTreeMap<u32, Vec<Duration>> = BTreeMap::new();
    let mut turn = 0;
    while turn < 6
        || turn % 2 == 1
        || (turn < options.repeat && begun.elapsed() < Duration::from_secs(options.seconds))
    {
        let bytes = make(turn).finish();
        if options.pause > 0 {
            std::thread::sleep(Duration::from_millis(options.pause));
        }
        let one = kernel.send(&bytes).with_context(|| operation.to_owned())?;
        took.entry(turn % 2).or_default().push(one);
        turn += 1;
    }
    let median = |values: &mut Vec<Duration>| {
        values.sort();
        values
            .get(values.len() / 2)
            .map_or(0.0, |value| value.as_secs_f64() * 1e6)
    };
    let [a, b] = [0, 1].map(|odd| took.get_mut(&odd).map_or(0.0, median));
    println!("{name:<22} {operation:<28} {a:10.0} {b:10.0} us   ({turn})");
    Ok(())
}

/// Sets with intervals: a tree, and a concatenation (pipapo).
fn intervals(kernel: &Kernel, options: &Cost, elements: u32) -> Result<()> {
    for is_concat in [false, true] {
        let mut to = Transaction::new(IPV4);
        to.table();
        let fields: &[u32] = if is_concat { &[4, 1, 2, 4] } else { &[] };
        let key_len = if is_concat { SERVICE_KEY + 4 } else { 4 };
        let flags = INTERVAL | if is_concat { CONCAT } else { 0 };
        to.set(&SetOf {
            name: "ranges",
            flags,
            key_len,
            id: 1,
            fields,
            ..SetOf::default()
        });
        let mut spent = kernel.send(&to.finish())?;
        let range = move |number: u32| {
            let first = (0x0b00_0000 + number * 512).to_be_bytes();
            let last = (0x0b00_0000 + number * 512 + 255).to_be_bytes();
            if is_concat {
                let mut element =
                    Element::new([key(number, UDP), first.to_vec()].concat(), Data::None);
                element.end = Some([key(number, UDP), last.to_vec()].concat());
                vec![element]
            } else {
                let mut end = Element::new(
                    (0x0b00_0000 + number * 512 + 256).to_be_bytes().into(),
                    Data::None,
                );
                end.is_end = true;
                vec![Element::new(first.to_vec(), Data::None), end]
            }
        };
        for first in (0..elements).step_by(options.chunk as usize) {
            let mut to = Transaction::new(IPV4);
            for number in first..elements.min(first + options.chunk) {
                to.add("ranges", 0, &range(number));
            }
            spent += kernel.send(&to.finish())?;
        }
        let name = format!(
            "{} {elements}",
            if is_concat {
                "concat interval"
            } else {
                "interval"
            }
        );
        println!("{name:<22} {:<28} {:10.3} s", "fill", spent.as_secs_f64());
        let make: Make = Box::new(move |turn| {
            let mut to = Transaction::new(IPV4);
            if turn % 2 == 0 {
                to.add("ranges", 0, &range(elements + 1));
            } else {
                to.delete("ranges", &range(elements + 1));
            }
            to
        });
        repeat(kernel, options, &name, "element", &make)?;
        let mut to = Transaction::new(IPV4);
        to.delete_table();
        kernel.send(&to.finish())?;
    }
    Ok(())
}
