use super::*;

fn refusal(errno: i32) -> Refusal {
    Refusal {
        errno,
        message: None,
        request: Vec::new(),
    }
}

#[test]
fn the_deletion_of_a_missing_flow_is_not_a_refusal() {
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
fn the_error_for_missing_conntrack_support_names_the_modprobe_command() {
    let error = refused(refusal(errno::EINVAL).into());
    assert!(
        error
            .to_string()
            .contains("`modprobe nf_conntrack_netlink`"),
        "{error}"
    );
    assert!(matches!(refused(refusal(16).into()), Error::Netlink(_)));
}
