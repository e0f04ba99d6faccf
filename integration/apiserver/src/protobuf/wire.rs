//! Reads and writes protobuf's wire format: fields with a number and a value
//! (<https://protobuf.dev/programming-guides/encoding>).

/// Value of a protobuf field, by wire type.
#[derive(Clone, Copy)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A value of 32 or 64 bits. No message that the fake API server supports has such a field.
    Fixed,
}

/// Error for bytes that are not a protobuf message.
#[derive(Debug, PartialEq)]
pub(super) struct InvalidMessage;

/// Iterator over the fields of an encoded message: field number and value, in wire order. Ends
/// after the first error.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), InvalidMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(InvalidMessage))
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => self.take(8).map(|_| Wire::Fixed)?,
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => self.take(4).map(|_| Wire::Fixed)?,
            _ => return None,
        };
        Some((tag >> 3, wire))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Writes a varint field: a field number and an integer.
pub(super) fn put_number(number: u64, value: u64, out: &mut Vec<u8>) {
    put_varint(number << 3, out);
    put_varint(value, out);
}

/// Writes a length-delimited field with this content: a string, bytes or a message.
pub(super) fn put_bytes(number: u64, bytes: &[u8], out: &mut Vec<u8>) {
    put_length(number, bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// Writes the field number and the length of a length-delimited field. The caller writes the
/// content.
pub(super) fn put_length(number: u64, length: usize, out: &mut Vec<u8>) {
    put_varint(number << 3 | 2, out);
    put_varint(length as u64, out);
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
