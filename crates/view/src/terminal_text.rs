//! Makes text safe to print on a terminal.

/// Replaces characters that control a terminal, imitate line breaks or reorder text. Such
/// characters may be in names, reasons and kernel entries, which an attacker may have chosen.
pub fn shown(text: &str) -> String {
    let steers = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let seen = |letter: char| {
        if steers(letter) {
            char::REPLACEMENT_CHARACTER
        } else {
            letter
        }
    };
    text.chars().map(seen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_control_characters_are_replaced_in_displayed_text() {
        assert_eq!(shown("é a-b/c:http ←"), "é a-b/c:http ←");
        let all = shown("a\x1b[2J\u{9b}\n\u{202e}\u{2067}\u{200b}z");
        assert_eq!(all, "a\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}z");
    }
}
