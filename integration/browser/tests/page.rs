//! Tests the page `/ui/` with fixture data. Each test uses the page as an operator would.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use browser::{Browser, Fixture, Key, MARKUP, World};
use serde_json::{Value, json};

const MANY: usize = 10_000;

/// Starts a browser with an empty profile. `name` names the profile's directory.
fn browser(name: &str) -> Result<Browser> {
    let profile = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("profile-{name}"));
    if profile.exists() {
        std::fs::remove_dir_all(&profile)?;
    }
    Browser::start(&profile)
}

fn hash(browser: &Browser) -> Result<String> {
    let hash = browser.run("return location.hash", &[])?;
    Ok(hash.as_str().unwrap_or_default().to_owned())
}

/// Checks that no script has failed, and that the content security policy has blocked no load.
fn has_no_complaints(browser: &Browser) -> Result<()> {
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(())
}

#[test]
fn the_overview_shows_problems_first() -> Result<()> {
    let fixture = Fixture::start(World::with(20), 0)?;
    let browser = browser("overview")?;
    browser.go(&fixture.page(""))?;
    browser.sees("IPv4 is programmed except for 1 entry that the kernel refused.")?;
    browser.sees_all(&[
        "node-1 · ipvs",
        "failing",
        "synced",
        "load ip_vs_mh, or choose another --ipvs-scheduler",
        "192.0.2.20:80/TCP",
        "10.244.1.9:8080",
        "KUBE-CLUSTER-IP 10.96.0.1,tcp:80",
        "connection tracking entries",
        "scheduler mh",
    ])?;
    browser.picture("overview")?;
    browser.scheme("dark")?;
    browser.picture("overview-dark")?;
    has_no_complaints(&browser)
}

#[test]
fn ten_thousand_services_are_searched_by_keyboard() -> Result<()> {
    let fixture = Fixture::start(World::with(MANY), 0)?;
    let browser = browser("services")?;
    browser.go(&fixture.page(""))?;
    browser.sees("node-1")?;
    browser.press(Key::Escape)?;
    browser.write("/")?;
    browser.until(
        "the search field",
        "return document.activeElement.id === 'search'",
    )?;
    browser.sees("100 of 10,001 Services")?;
    browser.picture("services")?;
    let began = Instant::now();
    browser.write("web-04321")?;
    browser.until(
        "one row",
        "return document.querySelectorAll('tbody tr').length === 1 && document.body.innerText.includes('1 Service')",
    )?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(3), "a search took {took:?}");
    ensure!(hash(&browser)? == "#/services?search=web-04321");
    browser.press(Key::Down)?;
    browser.until(
        "its link",
        "return document.activeElement.textContent === 'web-04321'",
    )?;
    browser.press(Key::Enter)?;
    browser.sees_all(&[
        "ready, on this node",
        "terminating, and others are ready",
        "web-04321-3",
        "2 in, 1 out, 1 draining",
        "draining for 1 min 15 s, 2 open",
        "Weight",
    ])?;
    ensure!(hash(&browser)? == "#/services/team-1/web-04321");
    // Only the second response has rates, because rates need two samples.
    browser.until(
        "rates",
        "return [...document.querySelectorAll('td[data-title=\"New/s\"]')].some((cell) => cell.textContent > 0)",
    )?;
    browser.picture("service")?;
    browser.press(Key::Escape)?;
    browser.sees("1 Service")?;
    ensure!(hash(&browser)? == "#/services?search=web-04321");
    has_no_complaints(&browser)
}

#[test]
fn the_service_list_is_paged_and_filtered_by_namespace() -> Result<()> {
    let fixture = Fixture::start(World::with(MANY), 0)?;
    let browser = browser("pages")?;
    browser.go(&fixture.page("#/services?namespace=team-7"))?;
    browser.sees("100 of 1,000 Services")?;
    browser.run("document.querySelector('.pages a[rel=next]').click()", &[])?;
    browser.sees("100 of 1,000 Services, further on")?;
    browser.sees("web-01007")?;
    let count = browser.run("return document.querySelectorAll('tbody tr').length", &[])?;
    ensure!(count == json!(100), "{count}");
    browser.run("history.back()", &[])?;
    browser.sees("web-00007")?;
    has_no_complaints(&browser)
}

#[test]
fn a_packets_path_is_drawn_and_readable_as_a_list() -> Result<()> {
    let fixture = Fixture::start(World::with(20), 0)?;
    let browser = browser("explain")?;
    browser.go(&fixture.page("#/services/team-0/web-00000"))?;
    browser.sees("Trace a packet from")?;
    browser.run(
        "[...document.querySelectorAll('a')].find((a) => a.textContent === 'a pod on this node').click()",
        &[],
    )?;
    browser.sees_all(&[
        "pod 10.244.0.5 on this node",
        "Reaches one of 2 endpoints, with its own source address.",
        "TCP 10.96.0.1:80 rr",
        "EndpointSlice of team-0/web-00000",
        "--cluster-cidr",
        "18,211 packets",
        "50 %",
        "delivered to 10.244.0.3:8080",
        "Is refused: the Service port has no endpoints.",
    ])?;
    // Steps that several paths share appear once, in the order in which the packet takes them.
    let places = browser.run(
        "return [...document.querySelector('article').querySelectorAll('ol .place')].map((place) => place.textContent)",
        &[],
    )?;
    let wanted = [
        "nat PREROUTING",
        "nat KUBE-SERVICES",
        "IPVS",
        "IPVS",
        "IPVS",
    ];
    ensure!(places == json!(wanted), "{places}");
    browser.picture("explain")?;
    let chosen = "const from = document.getElementById('from'); from.value = 'external'; from.dispatchEvent(new Event('change'));";
    browser.run(chosen, &[])?;
    browser.until(
        "the address",
        "return location.hash.includes('from=external')",
    )?;
    browser.sees("another program redirects the packets: no endpoint of team-0/web-00000")?;
    has_no_complaints(&browser)
}

#[test]
fn top_shows_the_busiest_services_in_the_chosen_order() -> Result<()> {
    let fixture = Fixture::start(World::with(20), 0)?;
    let browser = browser("top")?;
    browser.go(&fixture.page("#/top"))?;
    browser.sees("team-0/web-00000")?;
    browser.sees("235")?;
    browser.picture("top")?;
    browser.run(
        "document.querySelector('.orders a:last-child').click()",
        &[],
    )?;
    browser.until("the order", "return location.hash === '#/top?sort=bytes'")?;
    has_no_complaints(&browser)
}

#[test]
fn empty_views_show_the_next_step() -> Result<()> {
    let fixture = Fixture::start(World::with(1).without_endpoints(), 0)?;
    let browser = browser("empty")?;
    for (at, texts) in [
        (
            "#/services?namespace=none",
            [
                "This node proxies no Service in namespace none.",
                "kubectl get services -n none",
            ],
        ),
        (
            "#/services?search=10.96.0.77",
            ["No Service matches “10.96.0.77”.", "trace a packet"],
        ),
        (
            "#/services/team-0/web-00000",
            [
                "No endpoints, so connections are refused.",
                "kubectl -n team-0 get endpointslices -l kubernetes.io/service-name=web-00000",
            ],
        ),
        (
            "#/explain",
            [
                "Enter a Service (default/web) or an address and port",
                "Trace a packet",
            ],
        ),
        ("#/top", ["Measuring: rates need two samples", "Top"]),
        ("#/nowhere", ["This address has no view.", "Overview"]),
    ] {
        browser.go(&fixture.page(at))?;
        browser.sees_all(&texts)?;
    }
    has_no_complaints(&browser)
}

#[test]
fn a_column_without_content_is_not_drawn() -> Result<()> {
    let fixture = Fixture::start(World::with(3).without_pods(), 0)?;
    let browser = browser("columns")?;
    browser.go(&fixture.page("#/services/team-0/web-00000"))?;
    browser.sees("In or out, and why")?;
    let titles = "return [...document.querySelectorAll('th')].map((each) => each.textContent)";
    let titles = browser.run(titles, &[])?.to_string();
    ensure!(
        !titles.contains("Pod") && titles.contains("Weight"),
        "{titles}"
    );
    has_no_complaints(&browser)
}

#[test]
fn displayed_times_have_a_time_zone() -> Result<()> {
    let fixture = Fixture::start(World::with(3), 0)?;
    let browser = browser("times")?;
    browser.go(&fixture.page(""))?;
    browser.sees("Running since")?;
    let began = "return [...document.querySelectorAll('dt')].find((each) => each.textContent === 'Running since').nextSibling.textContent";
    let began = browser.run(began, &[])?.to_string();
    ensure!(began.contains("UTC") || began.contains("GMT"), "{began}");
    has_no_complaints(&browser)
}

#[test]
fn the_page_shows_which_lists_a_starting_daemon_awaits() -> Result<()> {
    let fixture = Fixture::start(World::starting(), 0)?;
    let browser = browser("starting")?;
    browser.go(&fixture.page(""))?;
    browser.sees_all(&[
        "kube-proxy is starting: it writes nothing before the initial lists are complete.",
        "awaited: the first lists of Services and EndpointSlices, for 12 s now",
        "cannot be reached: <img",
        "not yet",
    ])?;
    browser.picture("starting")?;
    has_no_complaints(&browser)
}

#[test]
fn a_narrow_window_never_scrolls_sideways() -> Result<()> {
    let fixture = Fixture::start(World::with(300), 0)?;
    let browser = browser("narrow")?;
    let marked = format!("#/services/zzz/{}", encoded(MARKUP));
    for (width, name, at, text) in [
        (1100, "long-wide", &*marked, "draining for 1 min 15 s"),
        (360, "long", &*marked, "draining for 1 min 15 s"),
    ] {
        browser.size(width, 740)?;
        nothing_is_wider(&fixture, &browser, (name, at, text))?;
    }
    for shown in [
        ("overview", "#/", "connection tracking entries"),
        ("services", "#/services", "web-00000"),
        (
            "service",
            "#/services/team-0/web-00000",
            "terminating, and others are ready",
        ),
        (
            "explain",
            "#/explain?to=team-0/web-00000&from=pod",
            "delivered to",
        ),
        ("top", "#/top", "10.244.0.1:8080"),
    ] {
        nothing_is_wider(&fixture, &browser, shown)?;
    }
    has_no_complaints(&browser)
}

fn encoded(text: &str) -> String {
    let unsafe_in_addresses = percent_encoding::NON_ALPHANUMERIC;
    percent_encoding::utf8_percent_encode(text, unsafe_in_addresses).to_string()
}

/// Checks that every part of a view fits into the window, and that links are large enough to hit.
fn nothing_is_wider(
    fixture: &Fixture,
    browser: &Browser,
    (name, at, text): (&str, &str, &str),
) -> Result<()> {
    browser.go(&fixture.page(at))?;
    browser.sees(text)?;
    let wide = browser.run(
        "const wide = document.documentElement.clientWidth;
         return [...document.querySelectorAll('main *, header *')]
           .filter((each) => each.getBoundingClientRect().right > wide + 0.5 && !each.closest('thead, caption'))
               // A wide table scrolls by itself. The page does not scroll.
               .filter((each) => wide <= 720 || !each.parentElement.closest('.scroll'))
           .map((each) => each.outerHTML.slice(0, 120));",
        &[],
    )?;
    browser.picture(&format!("narrow-{name}"))?;
    ensure!(wide == json!([]), "{name}: {wide:#}");
    let scrolls = browser.run(
        "return document.documentElement.scrollWidth > document.documentElement.clientWidth",
        &[],
    )?;
    ensure!(scrolls == json!(false), "{name} scrolls sideways");
    let small = browser.run(
        "return [...document.querySelectorAll('a:not(.skip), button, input, select, summary')]
           .filter((each) => each.offsetParent)
           .filter((each) => Math.min(each.offsetWidth, each.offsetHeight) < 24)
           .map((each) => `${each.offsetWidth} x ${each.offsetHeight}: ${each.outerHTML.slice(0, 120)}`)",
        &[],
    )?;
    ensure!(
        small == json!([]),
        "{name} has targets below 24 px: {small:#}"
    );
    Ok(())
}

#[test]
fn a_service_name_with_markup_is_shown_as_text() -> Result<()> {
    let fixture = Fixture::start(World::with(3), 0)?;
    let browser = browser("markup")?;
    let name = "encodeURIComponent(arguments[0])";
    for view in [
        "'#/'".to_owned(),
        "'#/services'".to_owned(),
        format!("'#/services?search=' + {name}"),
        format!("'#/services/zzz/' + {name}"),
        format!("'#/services/zzz/' + {name} + 'x'"),
        format!("'#/explain?from=pod&to=zzz/' + {name}"),
        // `constructor` is no valid sort order, but every JavaScript object has a property with
        // this name.
        "'#/top?sort=constructor'".to_owned(),
    ] {
        browser.go(&fixture.page(""))?;
        browser.sees("node-1")?;
        browser.run(&format!("location.hash = {view}"), &[Value::from(MARKUP)])?;
        if !view.contains("#/top") {
            browser.sees(MARKUP)?;
        }
        let found = browser.run(
            "return [window.harmed ?? null, document.querySelectorAll('main img, main script, main [onerror]').length]",
            &[],
        )?;
        ensure!(found == json!([null, 0]), "{view}: {found}");
    }
    Ok(())
}

#[test]
fn an_outage_is_shown_until_a_daemon_responds() -> Result<()> {
    let fixture = Fixture::start(World::with(20), 0)?;
    let port = fixture.port();
    let browser = browser("gone")?;
    browser.go(&fixture.page("#/services"))?;
    browser.sees("web-00000")?;
    drop(fixture);
    browser.sees("kube-proxy has not answered since")?;
    browser.sees("no answer")?;
    // Without a server, the page still shows the last state.
    browser.sees("web-00000")?;
    browser.picture("gone")?;
    let _fixture = Fixture::start(World::with(30).in_mode("iptables"), port)?;
    // Another daemon may now respond, with other data in the header. So the page reloads the header
    // before it removes the banner.
    let head = browser.until(
        "the end of the outage",
        "return document.getElementById('gone').hidden && document.getElementById('node').innerText",
    )?;
    ensure!(head == "node-1 · iptables", "the head says {head}");
    browser.sees("31 Services")
}

#[test]
fn the_page_polls_slowly_and_pauses_while_it_is_hidden() -> Result<()> {
    let fixture = Fixture::start(World::with(20), 0)?;
    let browser = browser("polls")?;
    browser.go(&fixture.page("#/top"))?;
    browser.sees("team-0/web-00000")?;
    let before = fixture.request_count();
    std::thread::sleep(Duration::from_secs(7));
    let requests = fixture.request_count() - before;
    ensure!((2..=4).contains(&requests), "{requests} requests in 7 s");
    let hidden = "Object.defineProperty(document, 'hidden', {get: () => window.isHidden ?? true, configurable: true})";
    browser.run(hidden, &[])?;
    std::thread::sleep(Duration::from_millis(2500));
    let before = fixture.request_count();
    std::thread::sleep(Duration::from_secs(5));
    ensure!(
        fixture.request_count() == before,
        "it polls while it is hidden"
    );
    browser.run(
        "window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))",
        &[],
    )?;
    let began = Instant::now();
    while fixture.request_count() == before {
        ensure!(
            began.elapsed() < Duration::from_secs(3),
            "it does not poll again"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
