//! Values of flags, as they are written on the command line.

/// A count.
pub fn count(text: &str) -> Result<usize, &'static str> {
    let count = text.parse().ok().filter(|&count| count > 0);
    count.ok_or("it must be a whole number of at least 1")
}

/// A truth value, in the words that Hugging Face's scripts take. A flag without one is true.
pub fn switch(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "t" | "y" | "1" => Ok(true),
        "false" | "no" | "f" | "n" | "0" => Ok(false),
        _ => Err("it must be true or false"),
    }
}
