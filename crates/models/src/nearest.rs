//! Suggestions for misspelled names.

/// The edit distance between two strings. A `*` in the first matches any characters, at no cost.
pub fn distance(pattern: &str, text: &str) -> usize {
    let text: Vec<char> = text.chars().collect();
    let mut row: Vec<usize> = (0..=text.len()).collect();
    for letter in pattern.chars() {
        let above = row.clone();
        let step = if letter == '*' { 0 } else { 1 };
        row[0] = above[0] + step;
        for (i, other) in text.iter().enumerate() {
            let replaced = above[i] + usize::from(letter != *other).min(step);
            row[i + 1] = replaced.min(above[i + 1] + step).min(row[i] + step);
        }
    }
    row[text.len()]
}

/// The choice closest to a text, if one is close enough. Case is ignored.
pub fn nearest<'a>(text: &str, choices: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_lowercase();
    let measured = |choice: &'a str| (distance(&text, &choice.to_lowercase()), choice);
    let by_distance = choices.into_iter().map(measured);
    let (distance, choice) = by_distance.min_by_key(|(distance, _)| *distance)?;
    (distance <= text.chars().count().div_ceil(2)).then_some(choice)
}
