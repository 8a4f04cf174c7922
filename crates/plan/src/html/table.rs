//! Tables whose further rows are collapsed.

/// Rows that are shown.
const SHOWN: usize = 10;

/// A table with a row of headings.
pub fn table(headings: &str, rows: &[String]) -> String {
    let table = |rows: &[String]| {
        format!(
            "<div class=\"scroll\"><table>\n<tr>{headings}</tr>\n{}</table></div>\n",
            rows.concat()
        )
    };
    // One more row is no longer than the summary line.
    if rows.len() <= SHOWN + 1 {
        return table(rows);
    }
    let (shown, folded) = rows.split_at(SHOWN);
    format!(
        "{}<details><summary>{} more</summary>\n{}</details>\n",
        table(shown),
        folded.len(),
        table(folded)
    )
}
