//! Tables, of which what is too much to look at is folded away.

/// Rows that are shown at once.
const SHOWN: usize = 10;

/// A table with a row of headings.
pub fn table(headings: &str, rows: &[String]) -> String {
    let whole = |rows: &[String]| {
        format!(
            "<div class=\"scroll\"><table>\n<tr>{headings}</tr>\n{}</table></div>\n",
            rows.concat()
        )
    };
    // One more is no longer than the line that would stand for it.
    if rows.len() <= SHOWN + 1 {
        return whole(rows);
    }
    let (shown, folded) = rows.split_at(SHOWN);
    format!(
        "{}<details><summary>{} more</summary>\n{}</details>\n",
        whole(shown),
        folded.len(),
        whole(folded)
    )
}
