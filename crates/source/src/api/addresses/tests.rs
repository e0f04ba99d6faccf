//! Tests how addresses of the API server are found, kept and reported.

use tokio::time::advance;

use super::*;

/// Hooks of a test: a resolver that returns `answer`, and a [`Clear`] hook that records its
/// addresses.
#[derive(Clone, Default)]
struct World {
    /// Addresses that the resolver returns. `None`: the resolver fails.
    answer: Arc<Mutex<Option<Vec<IpAddr>>>>,
    cleared: Arc<Mutex<Vec<SocketAddr>>>,
}

impl World {
    fn answers(&self, addresses: Option<&[&str]>) {
        let parsed = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect();
        *self.answer.lock().unwrap() = addresses.map(parsed);
    }

    fn addresses(&self, urls: &[&str]) -> Addresses {
        let (answer, cleared) = (Arc::clone(&self.answer), Arc::clone(&self.cleared));
        let resolve = move |_: String| -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            let found = answer.lock().unwrap().clone();
            Box::pin(async { found.ok_or_else(|| io::Error::other("SERVFAIL")) })
        };
        let clear = move |addresses: Vec<SocketAddr>| -> BoxFuture<'static, ()> {
            cleared.lock().unwrap().extend(addresses);
            Box::pin(async {})
        };
        let targets = urls.iter().map(|url| ServerPeer::of(&url.parse().unwrap()));
        let hooks = ConnectHooks::default().resolved_by(Arc::new(resolve));
        Addresses::new(
            targets.flatten().collect(),
            hooks.cleared_by(Arc::new(clear)),
        )
    }
}

fn last(receiver: &mut UnboundedReceiver<Vec<SocketAddr>>) -> Option<Vec<String>> {
    let mut last = None;
    while let Ok(all) = receiver.try_recv() {
        last = Some(all.iter().map(ToString::to_string).collect());
    }
    last
}

#[tokio::test]
async fn an_api_server_ip_in_the_url_is_known_at_start() {
    for (url, at) in [
        ("https://172.35.0.9:6443", "172.35.0.9:6443"),
        ("https://172.35.0.9", "172.35.0.9:443"),
        ("http://172.35.0.9", "172.35.0.9:80"),
        ("https://[fd35::9]:6443", "[fd35::9]:6443"),
        ("https://[::ffff:172.35.0.9]:6443", "172.35.0.9:6443"),
    ] {
        let addresses = World::default().addresses(&[url]);
        assert_eq!(last(&mut addresses.subscribe()).unwrap(), [at]);
        assert_eq!(addresses.shown()[0].from, "given as an address");
    }
}

#[tokio::test(start_paused = true)]
async fn resolved_api_server_addresses_outlive_a_failing_resolver() {
    let world = World::default();
    let addresses = world.addresses(&["https://api.example:6443"]);
    let mut known = addresses.subscribe();
    assert_eq!(last(&mut known).unwrap(), [""; 0]);
    let following = tokio::spawn(addresses.clone().follow());
    let both = ["172.35.0.9:6443", "[fd35::9]:6443"];
    world.answers(Some(&["172.35.0.9", "fd35::9"]));
    advance(2 * RESOLVE_PERIOD).await;
    tokio::task::yield_now().await;
    assert_eq!(last(&mut known).unwrap(), both);
    assert_eq!(addresses.shown()[0].from, "api.example resolves to it");

    // The resolver fails, but the source keeps all addresses.
    world.answers(None);
    for _ in 0..2 * KEPT.as_secs() / RESOLVE_PERIOD.as_secs() {
        advance(2 * RESOLVE_PERIOD).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(last(&mut known), None);
    let dialled = addresses.resolve("api.example").await.unwrap();
    assert_eq!(dialled.len(), 2);

    // The name no longer resolves to two of the addresses. The source removes them after [`KEPT`].
    world.answers(Some(&["172.35.0.10"]));
    advance(2 * RESOLVE_PERIOD).await;
    tokio::task::yield_now().await;
    let three = ["172.35.0.9:6443", "172.35.0.10:6443", "[fd35::9]:6443"];
    assert_eq!(last(&mut known).unwrap(), three);
    advance(KEPT).await;
    tokio::task::yield_now().await;
    assert_eq!(last(&mut known).unwrap(), ["172.35.0.10:6443"]);
    following.abort();
}

#[tokio::test]
async fn a_server_address_is_reported_before_its_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let world = World::default();
    world.answers(Some(&["127.0.0.1"]));
    let url = format!("http://api.example:{}", at.port());
    // The host name of the proxy differs from that of the server.
    let addresses = world.addresses(&["https://server.example:6443", &url]);
    let mut known = addresses.subscribe();
    let dial = Dial::new(&addresses, |_| {});
    let dialled = dial.oneshot(url.parse().unwrap()).await.unwrap();
    assert_eq!(*world.cleared.lock().unwrap(), [at]);
    assert_eq!(last(&mut known).unwrap(), [at.to_string()]);
    // The name now has another address, but the connection to the old address is still open.
    addresses.change(Instant::now(), |entries| {
        entries.get_mut(&at).unwrap().resolved = None;
    });
    assert_eq!(addresses.shown()[0].from, "a connection to it is open");
    drop(dialled);
    assert_eq!(last(&mut known).unwrap(), [""; 0]);
}
