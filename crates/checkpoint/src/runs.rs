//! Reads elements that are scattered in a file: near ones at once.

use crate::error::Result;
use fullshard_core::Run;
use std::ops::Range;

/// The most bytes that are read at once, unless they are contiguous in memory too.
pub(crate) const CHUNK: usize = 8 << 20;

/// Bytes that are faster read than skipped.
const NEAR: usize = 16 << 10;

/// Reads runs from where they are saved to where they belong in `out`, given a function that reads a
/// range of saved elements. Runs are in order, and elements have `width` bytes.
pub(crate) fn read_runs(
    runs: impl Iterator<Item = Run>,
    width: usize,
    out: &mut [u8],
    mut read: impl FnMut(Range<usize>, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut runs = runs.peekable();
    let (mut near, mut buffer) = (Vec::new(), Vec::new());
    while let Some(first) = runs.next() {
        let (start, mut end) = (first.from, first.from + first.count);
        near.clear();
        near.push(first);
        while let Some(run) = runs.next_if(|run| {
            let bytes = (run.from + run.count - start) * width;
            (run.from - end) * width <= NEAR && bytes <= CHUNK
        }) {
            end = run.from + run.count;
            near.push(run);
        }
        if near.len() == 1 {
            read(start..end, place(out, first, width))?;
            continue;
        }
        buffer.resize((end - start) * width, 0);
        read(start..end, &mut buffer)?;
        for &run in &near {
            let saved = &buffer[(run.from - start) * width..][..run.count * width];
            place(out, run, width).copy_from_slice(saved);
        }
    }
    Ok(())
}

/// The bytes where a run belongs.
pub(crate) fn place(out: &mut [u8], run: Run, width: usize) -> &mut [u8] {
    &mut out[run.to * width..][..run.count * width]
}
