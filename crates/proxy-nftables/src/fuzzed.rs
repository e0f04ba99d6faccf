//! Entry points for the fuzzer. Each function passes bytes to a parser of the kernel's messages. No
//! other code uses these functions.

use std::sync::{Arc, LazyLock};

use nftables_netlink::Name;
use nftables_netlink::fuzzed::pieces;
use proxy::IpFamily;

use crate::base;
use crate::kernel::Object;
use crate::snapshot::SnapshotBuilder;

/// Names of the sets and chains in the base, per IP family.
static NAMES: LazyLock<[Vec<Name>; 2]> = LazyLock::new(|| {
    IpFamily::ALL.map(|family| base::names(family).into_iter().map(Into::into).collect())
});

/// Parses bytes as an object of the table. Adds parsed elements to every base set, and to the set
/// that their message names.
pub fn object(bytes: &[u8]) {
    let read = pieces(bytes);
    for (family, names) in IpFamily::ALL.into_iter().zip(&*NAMES) {
        let mut builder = SnapshotBuilder::new(family);
        builder.take(Object::Begin);
        if let Some(chain) = &read.chain {
            builder.take(Object::Chain(chain.clone(), 2));
        }
        if let Some(set) = &read.set {
            builder.take(Object::Set(set.clone(), 1));
        }
        if let Some(found) = &read.rule {
            let (chain, rule) = (Arc::clone(&found.chain), found.rule.clone());
            builder.take(Object::Rule(chain, rule));
        }
        if let Some((of, elements)) = &read.elements {
            for set in names.iter().chain([of]).map(Arc::clone) {
                builder.take(Object::Elements(set, elements.clone()));
            }
        }
        let _ = builder.finish();
    }
}
