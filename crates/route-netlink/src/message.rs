//! Encodes typed netlink messages, and reads their attributes.

use netlink_batch::{Batch, Malformed, Writer};
use netlink_packet_core::{NetlinkSerializable, NlaBuffer, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;

/// Appends a message to a batch, and returns the message's index.
pub(crate) fn push(batch: &mut Batch, flags: u16, message: &RouteNetlinkMessage) -> usize {
    batch.push(message.message_type(), flags, |writer| {
        write(writer, message);
    })
}

/// Writes a message without its `nlmsghdr`.
pub(crate) fn write(writer: &mut Writer<'_>, message: &RouteNetlinkMessage) {
    message.serialize(writer.zeroed(message.buffer_len()));
}

/// Returns the attributes of the given `kinds` that follow a header of `header` bytes. Does not
/// parse attributes of any other kind.
pub(crate) fn attributes<'a>(
    payload: &'a [u8],
    header: usize,
    kinds: &'a [u16],
) -> impl Iterator<Item = Result<NlaBuffer<&'a [u8]>, Malformed>> {
    let attributes = payload.get(header..).unwrap_or_default();
    NlasIterator::new(attributes)
        .map(|attribute| attribute.map_err(Malformed::from))
        .filter(
            |attribute| !matches!(attribute, Ok(attribute) if !kinds.contains(&attribute.kind())),
        )
}
