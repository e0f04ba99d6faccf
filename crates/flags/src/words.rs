//! Parses flags whose value is one word of a fixed list, such as `--detect-local-mode`.

use super::unusable_flag::UnusableFlag;

/// Looks up the word `given` in `words`, and returns the value that belongs to it.
///
/// # Errors
///
/// Fails if the list does not contain the word.
pub fn word<T: Copy>(
    flag: &'static str,
    given: &str,
    words: &[(&str, T)],
) -> Result<T, UnusableFlag> {
    let known = words.iter().find(|(word, _)| *word == given);
    known.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let (last, others) = words.split_last().unwrap_or((&"nothing", &[]));
        UnusableFlag::new(flag, given, format!("give {} or {last}", others.join(", ")))
    })
}
