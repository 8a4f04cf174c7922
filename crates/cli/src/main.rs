//! The `fullshard` binary: parses the command line and calls the library.
#![forbid(unsafe_code)]

fn main() {}
