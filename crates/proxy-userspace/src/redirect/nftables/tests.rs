use nftables_netlink::{Bytes, ElementData};
use proxy::Protocol;

use super::*;

#[test]
fn a_redirect_is_one_element_in_the_map_of_each_origin() {
    let aim = |port| RedirectTarget {
        name: "default/web".into(),
        via: Some([192, 0, 2, 1].into()),
        outside: port,
        pods: port,
        node: port,
    };
    let plan = Redirects {
        changes: vec![crate::plan::Change {
            portal: Portal {
                address: Some([10, 96, 0, 1].into()),
                protocol: Protocol::Udp,
                port: 53,
            },
            before: Some(aim(40_000)),
            after: Some(aim(40_001)),
            owner: None,
        }],
        ..Redirects::default()
    };
    let edits = edits(IpFamily::V4, &plan);
    let names = edits.iter().map(|edit| match edit {
        Edit::DeleteElements(map, elements) => format!("-{map}:{}", elements.len()),
        Edit::AddElements(map, elements) => format!("+{map}:{}", elements.len()),
        other => format!("{other:?}"),
    });
    let wanted = [
        "-portals:1",
        "-portals-node:1",
        "+portals:1",
        "+portals-node:1",
    ];
    assert_eq!(names.collect::<Vec<_>>(), wanted);
    let Some(Edit::AddElements(_, elements)) = edits.last() else {
        unreachable!("it is the last");
    };
    let key = [10, 96, 0, 1, 17, 0, 0, 0, 0, 53, 0, 0];
    assert_eq!(elements[0].key.as_slice(), key);
    let value = [127, 0, 0, 1, 0x9c, 0x41, 0, 0];
    assert_eq!(
        elements[0].data,
        Some(ElementData::Value(Bytes::from_slice(&value)))
    );
}

#[test]
fn a_table_without_its_comment_is_recognised_as_own() {
    let is_ours = |table: Table| read::is_ours(IpFamily::V4, &table);
    let commented = |comment: Option<&str>| Table {
        comment: comment.map(Into::into),
        ..table(IpFamily::V4)
    };
    assert!(is_ours(table(IpFamily::V4)));
    assert!(is_ours(commented(None)));
    assert!(!is_ours(commented(Some("another"))));
    assert!(!is_ours(table(IpFamily::V6)));
}
