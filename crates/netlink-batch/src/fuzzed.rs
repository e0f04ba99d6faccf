//! Entry points for the fuzzer. Each function passes arbitrary bytes to one parser. No other code
//! may use these functions.

use crate::Attributes;
use crate::message::Messages;

/// Parses the messages of a datagram, their errors, and their attributes four levels deep.
pub fn datagram(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = message.refusal();
        let _ = message.dump_refusal();
        for header in [0, 4, 8, 12, 16, 20] {
            if let Ok(attributes) = Attributes::after(header, message.payload) {
                walk(attributes, 4);
            }
        }
    }
}

fn walk(attributes: Attributes<'_>, levels: usize) {
    for attribute in attributes.flatten() {
        let _ = attribute.string();
        let _ = (attribute.u8(), attribute.be32());
        if levels > 0 {
            walk(attribute.nested(), levels - 1);
        }
    }
}
