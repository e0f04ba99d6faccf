//! Formats Markdown pages that test programs write into `docs`.

/// Maximum length of a line of prose, which `integration/documents` checks.
const COLUMNS: usize = 100;

/// Wraps paragraphs and list items at 100 columns. Does not change tables, headings and images.
#[must_use]
pub fn wrapped(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    for line in text.lines() {
        if line.chars().count() <= COLUMNS || line.starts_with(['|', '#', '!']) {
            page.push_str(line);
        } else {
            fill(line, &mut page);
        }
        page.push('\n');
    }
    page
}

/// Appends a paragraph or a list item, wrapped at 100 columns. Indents the further lines of a list
/// item.
fn fill(line: &str, page: &mut String) {
    let indent = if line.starts_with("* ") || line.starts_with("- ") {
        "  "
    } else {
        ""
    };
    let mut column = 0;
    for word in line.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > COLUMNS {
            page.push('\n');
            page.push_str(indent);
            column = indent.len();
        } else if column > 0 {
            page.push(' ');
            column += 1;
        }
        page.push_str(word);
        column += width;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_but_tables_stay_unchanged() {
        let row = format!("| {} |\n", "figure ".repeat(20));
        assert_eq!(wrapped(&row), row);
        assert_eq!(wrapped("  indented\n"), "  indented\n");
        let item = format!("* {}end\n", "word ".repeat(30));
        let page = wrapped(&item);
        assert!(page.lines().all(|line| line.chars().count() <= 100));
        assert!(page.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(
            page.split_whitespace().count(),
            item.split_whitespace().count()
        );
    }
}
