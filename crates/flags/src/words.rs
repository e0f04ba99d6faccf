//! Parses the values of flags that accept only a few words.

use super::unusable_flag::UnusableFlag;

/// Returns the value that belongs to the word `given` in the list `words`.
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
