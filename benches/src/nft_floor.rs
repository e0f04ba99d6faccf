//! The floor of nftables mode: a bare loader that sends the state of upstream's layout as messages
//! that were encoded before the clock starts, and as the daemon encodes them: a map in braces has a
//! name of its own, and is referred to by its number in the transaction, which costs the kernel
//! least (docs/nftables-cost.md).
//!
//! A cold start is a transaction with what is fixed, and then one for each thousand Services: fewer
//! and larger ones take the kernel longer, as it looks for each new map among those of the
//! transaction. In the flat layout all are elements, in messages of some hundreds. A change is what
//! upstream writes for it: the chain, emptied, its rule with a new map, and the local endpoint that
//! goes; in the flat layout, an element that takes another's place.

use std::io::Write as _;
use std::time::Instant;

use anyhow::Result;

use crate::floor::pause;
use crate::nft_cost::layout::{Content, Layout, chain, value};
use crate::nft_cost::wire::{Data, Element, IPV4, IPV6, Kernel, Transaction};
use crate::objects::{Endpoint, Objects, changed};
use crate::schema::{Axis, Cell, SubjectKind};

/// Services to a transaction.
const CHUNK: u32 = 1_000;
/// Elements to a message, which has less than 64 KiB of them.
const IN_MESSAGE: usize = 400;
const TCP: u8 = 6;

/// What a cell's floor does, in a process of its own. It waits at the end, to be looked at.
pub(crate) fn run(cell: &Cell) -> Result<()> {
    let objects = Objects::new(cell.size);
    let content = Content {
        layout: match cell.subject.kind {
            SubjectKind::NftFlatFloor => Layout::Flat,
            _ => Layout::Named,
        },
        services: objects.services(),
        endpoints: cell.size.endpoints,
        protocol: TCP,
    };
    let kernel = Kernel::open()?;
    let state = state(content, &objects);
    if cell.axis == Axis::Change {
        load(&kernel, &state)?;
        let changes = changes(content, objects, cell);
        pause()?;
        let mut took = Vec::with_capacity(changes.len());
        for change in &changes {
            let started = Instant::now();
            kernel.send(change)?;
            took.push(started.elapsed().as_secs_f64() * 1e3);
        }
        println!("changes_ms {}", serde_json::to_string(&took)?);
    } else {
        pause()?;
        let started = Instant::now();
        load(&kernel, &state)?;
        println!("write_tables_s {:.6}", started.elapsed().as_secs_f64());
    }
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

fn load(kernel: &Kernel, state: &[Vec<u8>]) -> Result<()> {
    for transaction in state {
        kernel.send(transaction)?;
    }
    Ok(())
}

fn state(content: Content, objects: &Objects) -> Vec<Vec<u8>> {
    let mut state = vec![content.base(IPV4).finish(), content.base(IPV6).finish()];
    for first in (0..content.services).step_by(CHUNK as usize) {
        let mut to = Transaction::new(IPV4);
        let services = first..content.services.min(first + CHUNK);
        if content.layout == Layout::Flat {
            let local = services
                .clone()
                .flat_map(|service| objects.endpoints(service))
                .filter(|endpoint| endpoint.is_local)
                .map(hairpin);
            let mut all = content.elements_of(services.clone());
            all.push(("hairpin-connections".to_owned(), local.collect()));
            for (set, elements) in &all {
                for some in elements.chunks(IN_MESSAGE) {
                    to.add(set, 0, some);
                }
            }
        } else {
            for service in services {
                content.add_service(&mut to, service, content.endpoints);
                for endpoint in objects.endpoints(service) {
                    if endpoint.is_local {
                        to.add("hairpin-connections", 0, &[hairpin(endpoint)]);
                    }
                }
            }
        }
        state.push(to.finish());
    }
    state
}

fn changes(content: Content, mut objects: Objects, cell: &Cell) -> Vec<Vec<u8>> {
    let turns = (0..cell.changes).map(|turn| {
        let (service, index) = changed(cell.size, turn);
        let old = objects.endpoints(service).get(index).copied();
        objects.replace(service, index, turn);
        let values = objects.endpoints(service).into_iter();
        let values: Vec<Vec<u8>> = values.map(|one| value(one.at.ip().to_bits())).collect();
        let mut to = Transaction::new(IPV4);
        if let Some(old) = old.filter(|old| old.is_local) {
            to.delete("hairpin-connections", &[hairpin(old)]);
        }
        if content.layout == Layout::Flat {
            content.replace_endpoint(&mut to, service, index, values);
        } else {
            to.chain(&chain(service));
            to.flush_chain(&chain(service));
            content.rule_of(&mut to, service, values, turn + 1);
        }
        to.finish()
    });
    turns.collect()
}

/// An endpoint that asks for its own Service, and gets to itself.
fn hairpin(endpoint: Endpoint) -> Element {
    let address = endpoint.at.ip().octets();
    let [high, low] = endpoint.at.port().to_be_bytes();
    let key = [address, address, [TCP, 0, 0, 0], [high, low, 0, 0]].concat();
    Element::new(key, Data::None)
}
