//! Prints the tables, sets, chains and rules of this network namespace, as `nft list ruleset` does.
//!
//! ```text
//! cargo build -p nftables-netlink --example nft_list && sudo target/debug/examples/nft_list
//! ```

use nftables_netlink::{DataType, Error, Family, Nftables, SetKind, TableDump, text};

fn main() -> Result<(), Error> {
    let mut nftables = Nftables::open()?;
    for table in nftables.tables(None)? {
        // All parts of the dump belong to one generation of the ruleset.
        let dump = nftables.read(table.family, &table.name)?;
        println!("table {} {} {{", family(table.family), table.name);
        print(table.family, &dump);
        println!("}}");
    }
    Ok(())
}

fn print(family: Family, dump: &TableDump) {
    for (set, elements) in &dump.sets {
        let set = &set.set;
        let (word, values) = match &set.kind {
            SetKind::Set => ("set", String::new()),
            SetKind::Map(types) => ("map", format!(" : {}", types_of(types))),
            SetKind::Verdicts => ("map", " : verdict".to_owned()),
        };
        println!("\t{word} {} {{", set.name);
        println!("\t\ttype {}{values}", types_of(&set.key));
        // In a set of ranges, the end of each range is a separate element. `nft` does not list such
        // elements, so this example skips them.
        let elements = elements.iter().filter(|element| !element.ends_interval);
        let texts = elements.map(|element| text::element(&set.key, &set.kind, element, None));
        let texts: Vec<String> = texts.collect();
        if !texts.is_empty() {
            println!("\t\telements = {{ {} }}", texts.join(", "));
        }
        println!("\t}}");
    }
    for chain in &dump.chains {
        println!("\tchain {} {{", chain.name);
        if let Some(base) = &chain.base {
            let word = |of: &dyn std::fmt::Debug| format!("{of:?}").to_lowercase();
            let (kind, hook, policy) = (word(&base.kind), word(&base.hook), word(&base.policy));
            let priority = base.priority;
            println!("\t\ttype {kind} hook {hook} priority {priority}; policy {policy};");
        }
        for rule in dump.rules.iter().filter(|rule| rule.chain == chain.name) {
            println!("\t\t{}", text::rule(family, &rule.rule, &[]));
        }
        println!("\t}}");
    }
}

fn types_of(types: &[DataType]) -> String {
    let types: Vec<String> = types.iter().map(ToString::to_string).collect();
    types.join(" . ")
}

fn family(family: Family) -> &'static str {
    match family {
        Family::Inet => "inet",
        Family::Ip => "ip",
        Family::Ip6 => "ip6",
        Family::Arp => "arp",
        Family::Netdev => "netdev",
        Family::Bridge => "bridge",
    }
}
