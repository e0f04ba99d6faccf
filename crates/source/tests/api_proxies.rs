//! Tests of the API source through HTTP, HTTPS and SOCKS 5 proxies.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "the server that is scripted is for other tests")]
mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use apiserver::{Authority, Options, Proxy, ProxyOptions, ProxyProtocol, Server, Tls};
use common::{Folder, Log, ReceivedState, until_said};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

/// Password that must be percent-encoded in a URL.
const PASSWORD: &str = "p@ss:w/rd";
const ENCODED: &str = "p%40ss%3Aw%2Frd";

/// An API server with TLS, the CA of its certificate, and a directory with a kubeconfig.
struct World {
    authority: Authority,
    server: Server,
    folder: Folder,
}

impl World {
    async fn new() -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into()).await
    }

    async fn at(address: IpAddr) -> Self {
        let authority = Authority::new("kubernetes").unwrap();
        let names = ["127.0.0.1", "::1", "api.example"];
        let options = Options {
            address: (address, 0).into(),
            tls: Some(tls(&authority, &names)),
            ..Options::default()
        };
        let server = Server::start(options).await.unwrap();
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}});
        server.apply(service).unwrap();
        let folder = Folder::new();
        folder.write("ca.crt", &authority.certificate());
        Self {
            authority,
            server,
            folder,
        }
    }

    /// Returns the state that a source receives through this proxy.
    async fn told(&self, proxy_url: &str) -> ReceivedState {
        self.told_of(&self.server.url(), json!({"proxy-url": proxy_url}))
            .await
    }

    async fn told_of(&self, server: &str, mut cluster: Value) -> ReceivedState {
        cluster["certificate-authority"] = json!("ca.crt");
        let kubeconfig = self.folder.kubeconfig(server, cluster, &json!({}));
        let source = common::server(Some(&kubeconfig), None).await;
        ReceivedState::of(&source.ok().unwrap(), "node1")
    }

    /// Checks that the source lists and watches all objects through this proxy only.
    async fn is_served(&self, proxy: &Proxy, url: &str) {
        let before = self.server.requests().len();
        let mut told = self.told(url).await;
        told.until_services(&["web"]).await;
        told.until_watched_after(&self.server, before).await;
        let targets = proxy.targets();
        let wanted = self.server.address().to_string();
        assert!(!targets.is_empty(), "{url} is not used");
        assert!(
            targets.iter().all(|target| *target == wanted),
            "{targets:?}"
        );
        // Waits, because the source may have opened a connection that it did not need, and the
        // server may still have to count this connection.
        let are_all_there = async {
            while proxy.targets().len() != self.server.connections() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let limit = Duration::from_secs(5);
        let waited = timeout(limit, are_all_there).await;
        assert!(waited.is_ok(), "one tunnel each: {:?}", proxy.targets());
    }
}

fn tls(authority: &Authority, names: &[&str]) -> Tls {
    Tls {
        identity: authority.server(names).unwrap(),
        clients: None,
    }
}

fn me() -> (String, String) {
    ("me".to_owned(), PASSWORD.to_owned())
}

fn socks() -> ProxyOptions {
    ProxyOptions {
        speaks: ProxyProtocol::Socks5,
        ..ProxyOptions::default()
    }
}

/// Returns an address on which no process listens.
fn unused_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Waits for the log line about an unreachable server. Checks that it contains no password.
async fn complaint(told: &mut ReceivedState, log: &Log) -> String {
    let line = until_said(told, log, "cannot be reached").await;
    assert!(line.contains("retrying; "), "{line}");
    assert!(
        !line.contains(PASSWORD) && !line.contains(ENCODED),
        "{line}"
    );
    line
}

#[tokio::test]
async fn an_http_proxy_works_with_and_without_a_password() {
    for user in [None, Some(me())] {
        let world = World::new().await;
        let options = ProxyOptions {
            user: user.clone(),
            ..ProxyOptions::default()
        };
        let proxy = Proxy::start(options).await.unwrap();
        let user = user.map_or(String::new(), |_| format!("me:{ENCODED}@"));
        let url = format!("http://{user}{}", proxy.address());
        world.is_served(&proxy, &url).await;
    }
}

#[tokio::test]
async fn an_https_proxy_works_with_and_without_a_password() {
    for (user, address) in [
        (None, IpAddr::from(Ipv4Addr::LOCALHOST)),
        (Some(me()), Ipv6Addr::LOCALHOST.into()),
    ] {
        let world = World::at(address).await;
        let options = ProxyOptions {
            address: (address, 0).into(),
            tls: Some(tls(&world.authority, &["127.0.0.1", "::1"])),
            user: user.clone(),
            ..ProxyOptions::default()
        };
        let proxy = Proxy::start(options).await.unwrap();
        let user = user.map_or(String::new(), |_| format!("me:{ENCODED}@"));
        let url = format!("https://{user}{}", proxy.address());
        world.is_served(&proxy, &url).await;
    }
}

#[tokio::test]
async fn a_socks_proxy_works_with_and_without_a_password() {
    for scheme in ["socks5", "socks5h"] {
        for (wants, has) in [(None, None), (Some(me()), Some(me())), (None, Some(me()))] {
            let world = World::new().await;
            let options = ProxyOptions {
                user: wants,
                ..socks()
            };
            let proxy = Proxy::start(options).await.unwrap();
            // Like a Go program, the source sends no password to a proxy that requires none.
            let user = has.map_or(String::new(), |_| format!("me:{ENCODED}@"));
            let url = format!("{scheme}://{user}{}", proxy.address());
            world.is_served(&proxy, &url).await;
        }
    }
}

#[tokio::test]
async fn a_socks_proxy_works_over_ipv6() {
    let world = World::at(Ipv6Addr::LOCALHOST.into()).await;
    let address = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let proxy = Proxy::start(ProxyOptions { address, ..socks() })
        .await
        .unwrap();
    let url = format!("socks5://{}", proxy.address());
    world.is_served(&proxy, &url).await;
}

/// Checks a server name that only the proxy can resolve.
#[tokio::test]
async fn the_http_or_socks_proxy_resolves_the_api_servers_name() {
    for (scheme, speaks) in [
        ("http", ProxyProtocol::Http),
        ("socks5", ProxyProtocol::Socks5),
    ] {
        let world = World::new().await;
        let names = [("api.example".to_owned(), IpAddr::from(Ipv4Addr::LOCALHOST))];
        let options = ProxyOptions {
            speaks,
            names: names.into(),
            ..ProxyOptions::default()
        };
        let proxy = Proxy::start(options).await.unwrap();
        let server = format!("api.example:{}", world.server.address().port());
        let cluster = json!({"proxy-url": format!("{scheme}://{}", proxy.address())});
        let mut told = world.told_of(&format!("https://{server}"), cluster).await;
        told.until_services(&["web"]).await;
        assert!(proxy.targets().iter().all(|target| *target == server));
    }
}

#[tokio::test]
async fn a_proxys_certificate_is_verified_with_the_ca_of_the_kubeconfig() {
    let world = World::new().await;
    let other = Authority::new("company").unwrap();
    let (log, _guard) = Log::start();
    let start = async |authority: &Authority, names: &[&str]| {
        let tls = Some(tls(authority, names));
        Proxy::start(ProxyOptions {
            tls,
            ..ProxyOptions::default()
        })
        .await
        .unwrap()
    };
    let proxy = start(&other, &["127.0.0.1"]).await;
    let url = format!("https://{}", proxy.address());
    let mut told = world.told(&url).await;
    let line = complaint(&mut told, &log).await;
    for part in [
        &url,
        "not signed by certificate-authority",
        "ca.crt",
        "put the proxy's CA there",
    ] {
        assert!(line.contains(part), "{line}");
    }
    // Adds the CA of the proxy to that of the cluster.
    let both = world.authority.certificate() + &other.certificate();
    world.folder.write("ca.crt", &both);
    told.until_services(&["web"]).await;

    let misnamed = start(&world.authority, &["proxy.example"]).await;
    let mut told = world.told(&format!("https://{}", misnamed.address())).await;
    let line = until_said(&mut told, &log, "proxy.example").await;
    assert!(
        line.contains("use one of its names in the proxy's URL"),
        "{line}"
    );
    assert_eq!(misnamed.targets(), [""; 0]);

    // The proxy's certificate lacks the name in `tls-server-name`, which applies only to the
    // server.
    let named = start(&world.authority, &["127.0.0.1"]).await;
    let cluster = json!({
        "proxy-url": format!("https://{}", named.address()), "tls-server-name": "api.example",
    });
    let mut told = world.told_of(&world.server.url(), cluster).await;
    told.until_services(&["web"]).await;
}

#[tokio::test]
async fn a_failing_http_proxy_is_logged_with_the_next_step() {
    let dead = format!("https://{}", unused_address());
    for (options, wrong, server, parts) in [
        (
            ProxyOptions {
                user: Some(me()),
                ..ProxyOptions::default()
            },
            "me:guessed@",
            None,
            ["407", "percent-encoded"],
        ),
        (
            ProxyOptions {
                refuses: true,
                ..ProxyOptions::default()
            },
            "",
            None,
            ["403", "allows CONNECT"],
        ),
        (
            ProxyOptions::default(),
            "",
            Some(&dead),
            ["502", "reaches the API server"],
        ),
        (socks(), "", None, ["breaks off", "URL of an HTTP proxy"]),
    ] {
        let world = World::new().await;
        let (log, _guard) = Log::start();
        let proxy = Proxy::start(options).await.unwrap();
        let cluster = json!({"proxy-url": format!("http://{wrong}{}", proxy.address())});
        let server = server.map_or(world.server.url(), Clone::clone);
        let mut told = world.told_of(&server, cluster).await;
        let line = complaint(&mut told, &log).await;
        let named = format!("proxy http://{}", proxy.address());
        for part in [&*named].iter().chain(&parts) {
            assert!(line.contains(part), "{line}");
        }
        assert!(!line.contains("guessed"), "{line}");
    }
}

#[tokio::test]
async fn a_failing_socks_proxy_is_logged_with_the_next_step() {
    let dead = format!("https://{}", unused_address());
    let asks = ProxyOptions {
        user: Some(me()),
        ..socks()
    };
    for (options, user, server, part) in [
        (
            asks.clone(),
            "me:guessed@",
            None,
            "credentials not accepted",
        ),
        (asks, "", None, "it wants a name and a password"),
        (
            ProxyOptions {
                refuses: true,
                ..socks()
            },
            "",
            None,
            "not allowed",
        ),
        (socks(), "", Some(&dead), "connection refused"),
    ] {
        let world = World::new().await;
        let (log, _guard) = Log::start();
        let proxy = Proxy::start(options).await.unwrap();
        let cluster = json!({"proxy-url": format!("socks5://{user}{}", proxy.address())});
        let server = server.map_or(world.server.url(), Clone::clone);
        let mut told = world.told_of(&server, cluster).await;
        let line = complaint(&mut told, &log).await;
        let named = format!("proxy socks5://{}", proxy.address());
        for part in [&named, part, "SOCKS 5 proxy", "reaches the API server"] {
            assert!(line.contains(part), "{line}");
        }
        assert!(!line.contains("guessed"), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_proxy_is_logged_by_name() {
    let world = World::new().await;
    let (log, _guard) = Log::start();
    // The HTTP proxy waits for a request line while the client waits for a SOCKS reply.
    let proxy = Proxy::start(ProxyOptions::default()).await.unwrap();
    let mut told = world.told(&format!("socks5://{}", proxy.address())).await;
    let line = complaint(&mut told, &log).await;
    let named = format!("proxy socks5://{} has not connected", proxy.address());
    for part in [&named, "within 30s", "of the kind that its URL says"] {
        assert!(line.contains(part), "{line}");
    }
}

#[tokio::test]
async fn the_source_waits_for_an_unreachable_proxy() {
    for (scheme, speaks) in [
        ("http", ProxyProtocol::Http),
        ("https", ProxyProtocol::Http),
        ("socks5", ProxyProtocol::Socks5),
    ] {
        let world = World::new().await;
        let (log, _guard) = Log::start();
        let address = unused_address();
        let mut told = world.told(&format!("{scheme}://{address}")).await;
        let line = complaint(&mut told, &log).await;
        assert!(
            line.contains(&format!(
                "proxy {scheme}://{address} cannot be reached: Connection refused"
            )),
            "{line}"
        );
        let is_https = scheme == "https";
        let options = ProxyOptions {
            address,
            speaks,
            tls: is_https.then(|| tls(&world.authority, &["127.0.0.1"])),
            ..ProxyOptions::default()
        };
        let _proxy = Proxy::start(options).await.unwrap();
        timeout(Duration::from_secs(10), told.until_services(&["web"]))
            .await
            .unwrap();
        until_said(&mut told, &log, "all is watched again").await;
    }
}
