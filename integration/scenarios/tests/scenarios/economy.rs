//! How little the daemon does.

use std::time::{Duration, Instant};

use scenarios::{Cluster, Outcome, Programs, Service, tcp};

pub(crate) fn changes_start_no_program(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    // With an endpoint on this node of its own, so that no set empties when that of the other goes.
    let near = Service::new("near", "10.96.0.12 fd96::12")
        .port(tcp(80, 8081))
        .endpoints("10.244.1.10 fd44:1::10");
    let other = Service::new("other", "10.96.0.11")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10");
    c.apply(&web)?;
    c.apply(&near)?;
    let programs = Programs::record(c)?;
    c.start(&[])?;
    c.until_served(&web)?;
    let at_start = programs.take()?;
    let writes = at_start
        .iter()
        .filter(|call| call.ends_with(" write"))
        .count();
    assert!(
        (1..=4).contains(&writes),
        "rules are written at start: {at_start:?}"
    );
    assert!(
        !at_start.iter().any(|call| call.starts_with("ip ")
            || call.starts_with("ips")
            || call.starts_with("ipv"))
    );

    // Endpoints change, a Service with nothing but a cluster IP comes and goes.
    let moved = web.clone().endpoints("10.244.2.10 fd44:2::10");
    c.apply(&moved)?;
    c.until_served(&moved)?;
    c.apply(&other)?;
    c.until_served(&other)?;
    c.delete("other")?;
    c.until_gone("TCP 10.96.0.11:80")?;
    c.apply(&web)?;
    c.until_served(&web)?;
    assert_eq!(
        programs.take()?,
        [""; 0],
        "changes that leave the rules as they are"
    );

    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(programs.take()?, [""; 0], "idle");

    // The first external address needs rules; the next one does not.
    c.apply(&web.clone().external("192.0.2.20"))?;
    c.until("it is there", || {
        Ok(c.servers()?.contains_key("TCP 192.0.2.20:80"))
    })?;
    let restore = format!("iptables-{}-restore write", lab::iptables_backend());
    assert_eq!(programs.take()?, [restore]);
    c.apply(&web.clone().external("192.0.2.20 192.0.2.21"))?;
    c.until("it is there", || {
        Ok(c.servers()?.contains_key("TCP 192.0.2.21:80"))
    })?;
    assert_eq!(programs.take()?, [""; 0]);
    c.stop()?;

    // A resync reads the rules back once in a period and family.
    c.apply(&web)?;
    c.start(&["--ipvs-sync-period=1s"])?;
    std::thread::sleep(Duration::from_millis(300));
    programs.take()?;
    let taken = Instant::now();
    std::thread::sleep(Duration::from_secs(4));
    let calls = programs.take()?;
    // One for each period that was entered, however late this process woke up.
    let periods = usize::try_from(taken.elapsed().as_secs())? + 1;
    for tables in ["iptables", "ip6tables"] {
        let program = format!("{tables}-{}-save", lab::iptables_backend());
        let count = calls.iter().filter(|call| **call == program).count();
        assert!(
            (2..=periods).contains(&count),
            "{program} ran {count} times in {periods} periods: {calls:?}"
        );
    }
    assert!(
        calls.iter().all(|call| call.ends_with("-save")),
        "{calls:?}"
    );
    Ok(())
}
