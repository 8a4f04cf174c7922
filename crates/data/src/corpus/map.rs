//! A file as memory.
#![allow(unsafe_code)]

use memmap2::Mmap;
use std::fs::File;
use std::io;

/// Maps a whole file into memory, to be read.
pub(super) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes must not change while they are mapped. Files of the cache are written
    // under a temporary name and never touched once they have their own; a newer one takes the
    // name but not the place of an older one.
    unsafe { Mmap::map(file) }
}
