//! Runs a limited number of random event sequences on a real kernel, in all forms (modes with
//! flags) that it supports.
#![allow(clippy::panic, reason = "a test stops at the first surprise")]

use std::time::Duration;

use properties::campaign::{Campaign, Ground, carried, go};
use properties::modes::FORMS;
use properties::stepped_threads::Threads;
use proxy::IpFamily;

#[test]
#[ignore = "needs a kernel with IPVS or nf_tables, and the right to make network namespaces: the lab"]
fn random_event_sequences_violate_no_property_on_the_kernel() {
    let mut forms: Vec<_> = FORMS.iter().collect();
    for family in IpFamily::ALL {
        let (carried, others) = carried(&forms, family);
        for why in others {
            println!("passed over: {why}");
        }
        forms = carried;
    }
    assert!(!forms.is_empty(), "this kernel can carry no mode at all");
    let campaign = Campaign {
        histories: 600,
        limit: Some(Duration::from_secs(20)),
        seed: 1,
        forms,
        ground: Ground::Kernel,
    };
    let account = go(&campaign, &Threads::start());
    println!("{} histories held", account.histories);
    if let Some(failed) = account.failed {
        panic!("{failed}");
    }
    assert!(account.histories > 0);
}
