//! Messages about invalid YAML, for operators.

/// Beginnings of the parser's messages, each with the advice that replaces the message.
const PLAIN: &[(&str, &str)] = &[
    ("invalid i32", "give a whole number of at most 2147483647"),
    ("invalid i64", "give a whole number"),
    ("invalid u", "give a whole number, 0 or more"),
    ("invalid floating point", "give a number"),
    ("invalid boolean", "give true or false"),
    (
        "expected string scalar",
        "give a text, not a list or fields",
    ),
    (
        "cannot deserialize null into string",
        "give a text, not null",
    ),
    (
        "value requires quoting",
        "give a text: put the value in quotes",
    ),
    ("expected sequence start", "give a list, such as [a, b]"),
    ("expected mapping start", "give fields with their values"),
    (
        "YAML document too large or too complex",
        "the document is too large, or has too many aliases (*name): split it, or write the values \
         out",
    ),
];

/// Returns the parser's message in plain words, without the position. The position counts from the
/// start of the document, not of the file.
pub fn message(error: &serde_saphyr::Error) -> String {
    let text = error
        .without_snippet()
        .render_with_formatter(&serde_saphyr::UserMessageFormatter);
    let end = text.rfind(" at line ").unwrap_or(text.len());
    let text = text.get(..end).unwrap_or(&text);
    let mut plain = PLAIN.iter();
    let plain = plain.find_map(|(start, plain)| text.starts_with(start).then_some(*plain));
    plain.unwrap_or(text).to_owned()
}
