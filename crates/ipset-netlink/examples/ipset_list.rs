//! Prints all sets of this network namespace with their entries, like `ipset save`.
//!
//! ```text
//! cargo build -p ipset-netlink --example ipset_list && sudo target/debug/examples/ipset_list
//! ```

use ipset_netlink::{Error, Ipset};

fn main() -> Result<(), Error> {
    let mut ipset = Ipset::open()?;
    for set in ipset.list_all()? {
        let name = &set.header.name;
        match &set.header.definition {
            Some(definition) => println!("create {name} {definition}"),
            // This crate does not support the set's type, so it decodes only the header.
            None => println!("# {name}: {}", set.header.type_name),
        }
        for entry in &set.entries {
            println!("add {name} {entry}");
        }
    }
    Ok(())
}
