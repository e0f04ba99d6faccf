use std::sync::mpsc;
use std::thread;

use super::*;

#[test]
fn a_read_of_one_table_does_not_wait_for_a_full_read() {
    let iptables = Iptables {
        backend: Backend::Legacy,
        infix: "-legacy",
        is_modern: true,
        readings: Arc::default(),
        why: BackendReason::Alone,
    };
    let looker = iptables.clone();
    let _reading = iptables.readings.of(Backend::Legacy, IpFamily::V4).lock();
    let (say, told) = mpsc::channel();
    thread::spawn(move || say.send(looker.kept(IpFamily::V4)));
    assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(None));
}
