//! Memory-mapped files.
#![allow(unsafe_code)]

use memmap2::Mmap;
use std::fs::File;
use std::io;

/// Maps a file into memory, read-only.
pub(super) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes must not change while they are mapped. Cache files are written under
    // a temporary name and never modified after the rename; a newer file replaces the name of an
    // older one, not its content. Files that are not cached have no name.
    unsafe { Mmap::map(file) }
}
