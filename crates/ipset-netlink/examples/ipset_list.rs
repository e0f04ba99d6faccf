//! Prints all sets of this network namespace with their entries, as `ipset save` does.
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
            // For a set of another type, the crate decodes only the header.
            None => println!("# {name}: {}", set.header.type_name),
        }
        for entry in &set.entries {
            println!("add {name} {entry}");
        }
    }
    Ok(())
}
