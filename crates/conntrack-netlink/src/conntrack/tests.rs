use super::*;

fn refusal(errno: i32) -> Refusal {
    Refusal {
        errno,
        message: None,
        request: Vec::new(),
    }
}

#[test]
fn a_flow_that_is_gone_is_no_refusal() {
    let busy = refusal(16);
    assert_eq!(Outcome::from(Reply::Done), Outcome::Deleted);
    assert_eq!(Outcome::from(Reply::Refused(refusal(2))), Outcome::Absent);
    assert_eq!(
        Outcome::from(Reply::Refused(busy.clone())),
        Outcome::Refused(busy)
    );
    assert_eq!(Outcome::from(Reply::Unknown), Outcome::Unknown);
}

#[test]
fn a_kernel_without_conntrack_says_what_to_run() {
    let error = refused(refusal(errno::EINVAL).into());
    assert!(
        error
            .to_string()
            .contains("`modprobe nf_conntrack_netlink`"),
        "{error}"
    );
    assert!(matches!(refused(refusal(16).into()), Error::Netlink(_)));
}
