use proxy::{NamespacedName, Protocol, ServicePortName};

use super::*;

fn owner(created: i64, service: &str, port: usize) -> Arc<Owner> {
    let service = NamespacedName::new("default", service);
    Arc::new(Owner {
        created,
        rank: Rank::of(&service),
        name: ServicePortName {
            service,
            port: format!("p{port:04}").into(),
            protocol: Protocol::Tcp,
        },
    })
}

#[test]
fn most_ports_of_a_service_with_many_ports_are_written_last() {
    let large = (0..4_000).map(|port| owner(1, "large", port));
    let others = (0..3).map(|port| owner(2, "web", port));
    let urgent = owner(3, "kubernetes", 0);
    let owners: Vec<_> = large.chain(others).chain([urgent]).collect();
    let due = owners
        .iter()
        .map(|owner| ((owner.rank, owner), PortChanges::default()));
    let turns = in_turns(due.collect());
    assert_eq!(turns.len(), owners.len());
    let names: Vec<&str> = turns.iter().map(|(of, _)| of.name.service.name()).collect();
    assert_eq!(names.first(), Some(&"kubernetes"));
    assert!(
        names
            .get(1..=SHARE)
            .unwrap()
            .iter()
            .all(|of| *of == "large")
    );
    assert_eq!(names.get(SHARE + 1..SHARE + 4), Some(&["web"; 3][..]));
    let is_sorted = |some: &[(&Arc<Owner>, PortChanges)]| some.is_sorted_by_key(|(of, _)| *of);
    assert!(is_sorted(turns.get(SHARE + 4..).unwrap()));
}

#[test]
fn most_services_of_a_namespace_with_many_services_are_written_last() {
    let many = (0..40).flat_map(|n| (0..100).map(move |port| (n, port)));
    let many = many.map(|(n, port)| {
        let mut owner = (*owner(1, &format!("s{n}"), port)).clone();
        owner.name.service = NamespacedName::new("tenant", &format!("s{n}"));
        Arc::new(owner)
    });
    let owners: Vec<_> = many.chain([owner(2, "web", 0)]).collect();
    let due = owners
        .iter()
        .map(|owner| ((owner.rank, owner), PortChanges::default()));
    let turns = in_turns(due.collect());
    assert_eq!(turns.len(), owners.len());
    let of_web = |(of, _): &(&Arc<Owner>, PortChanges)| of.name.service.name() == "web";
    assert_eq!(turns.iter().position(of_web), Some(SHARE));
}
