//! A tensor as a view of bytes in a file: where it starts, and its strides.

use crate::format::checked_elements;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Elements of a tensor that is not contiguous which are gathered at once.
const GATHERED: usize = 1 << 20;

/// Elements read at once to gather others from.
const READ: usize = 1 << 19;

/// Elements that are faster read than skipped.
const NEAR: usize = 1 << 10;

/// Elements in a file with strides, as in torch.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// The place of the first element in the file.
    start: u64,
    /// Bytes of an element.
    width: usize,
    dims: Vec<usize>,
    /// Steps in elements; 0 along dims of one element.
    strides: Vec<usize>,
}

impl View {
    /// A view of `available` elements from `start` on. `None` if it exceeds or repeats them.
    pub(crate) fn new(
        start: u64,
        width: usize,
        available: usize,
        dims: &[usize],
        strides: &[usize],
    ) -> Option<View> {
        let elements = checked_elements(dims)?;
        if elements > available || dims.len() != strides.len() {
            return None;
        }
        let used = |(&dim, &stride): (&usize, &usize)| if dim > 1 { stride } else { 0 };
        let strides: Vec<usize> = dims.iter().zip(strides).map(used).collect();
        let mut last = 0_usize;
        for (dim, stride) in dims.iter().zip(&strides) {
            last = last.checked_add(dim.saturating_sub(1).checked_mul(*stride)?)?;
        }
        if elements > 0 && last >= available {
            return None;
        }
        Some(View { start, width, dims: dims.to_vec(), strides })
    }

    /// Reads a range of elements in row-major order.
    pub(crate) fn read(&self, file: &File, range: Range<usize>, out: &mut [u8]) -> io::Result<()> {
        if self.is_contiguous() {
            return file.read_exact_at(out, self.start + (range.start * self.width) as u64);
        }
        self.gather(file, range.start, out)
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.dims.iter().zip(&self.strides).rev().all(|(&dim, &stride)| {
            let follows = dim <= 1 || stride == expected;
            expected *= dim;
            follows
        })
    }

    /// Reads elements in the order of the file, and puts each where it belongs.
    fn gather(&self, file: &File, first: usize, out: &mut [u8]) -> io::Result<()> {
        let width = self.width;
        let mut buffer = Vec::new();
        for (i, out) in out.chunks_mut(GATHERED * width).enumerate() {
            let offsets = Offsets::new(self, first + i * GATHERED);
            let mut places: Vec<(usize, usize)> = offsets.zip(0..out.len() / width).collect();
            places.sort_unstable();
            let mut rest = &places[..];
            while let Some(&(start, _)) = rest.first() {
                let follows = |pair: &&[(usize, usize)]| {
                    let (before, next) = (pair[0].0, pair[1].0);
                    next - before <= NEAR && next - start < READ
                };
                let (run, later) = rest.split_at(1 + rest.windows(2).take_while(follows).count());
                let last = run.last().map_or(start, |&(last, _)| last);
                buffer.resize((last + 1 - start) * width, 0);
                file.read_exact_at(&mut buffer, self.start + (start * width) as u64)?;
                for &(offset, index) in run {
                    let element = &buffer[(offset - start) * width..][..width];
                    out[index * width..][..width].copy_from_slice(element);
                }
                rest = later;
            }
        }
        Ok(())
    }
}

/// The offsets of elements, in row-major order.
struct Offsets<'a> {
    view: &'a View,
    index: Vec<usize>,
    offset: usize,
}

impl<'a> Offsets<'a> {
    fn new(view: &'a View, first: usize) -> Offsets<'a> {
        let mut rest = first;
        let mut index = vec![0; view.dims.len()];
        for (position, &dim) in index.iter_mut().zip(&view.dims).rev() {
            *position = rest % dim.max(1);
            rest /= dim.max(1);
        }
        let offset = index.iter().zip(&view.strides).map(|(i, stride)| i * stride).sum();
        Offsets { view, index, offset }
    }
}

impl Iterator for Offsets<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let current = self.offset;
        let dims = self.view.dims.iter().zip(&self.view.strides);
        for (position, (&dim, &stride)) in self.index.iter_mut().zip(dims).rev() {
            *position += 1;
            self.offset += stride;
            if *position < dim {
                break;
            }
            self.offset -= *position * stride;
            *position = 0;
        }
        Some(current)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Larger than what is gathered and read at once, with long and short steps.
    #[test]
    fn large_views_are_gathered() {
        const ELEMENTS: usize = 5 << 18;
        let mut file = tempfile::tempfile().unwrap();
        let values: Vec<u32> = (0..ELEMENTS as u32).collect();
        file.write_all(b"header").unwrap();
        file.write_all(bytemuck::cast_slice(&values)).unwrap();
        for (dims, strides) in [
            ([1 << 10, 5 << 8], [1, 1 << 10]),
            ([5 << 16, 2], [4, 2]),
            ([5 << 15, 4], [2, 5 << 16]),
        ] {
            let view = View::new(6, 4, ELEMENTS, &dims, &strides).unwrap();
            let elements = dims[0] * dims[1];
            for range in [1..elements, elements / 3..elements / 3 + 5] {
                let mut out = vec![0_u32; range.len()];
                view.read(&file, range.clone(), bytemuck::cast_slice_mut(&mut out)).unwrap();
                let expected = range.map(|i| {
                    (i / dims[1] * view.strides[0] + i % dims[1] * view.strides[1]) as u32
                });
                assert!(expected.eq(out), "{dims:?} {strides:?}");
            }
        }
    }

    #[test]
    fn rejects_views_beyond_their_elements() {
        let view = |dims: &[usize], strides: &[usize]| View::new(0, 4, 12, dims, strides);
        assert!(view(&[3, 4], &[4, 1]).is_some() && view(&[4, 3], &[1, 4]).is_some());
        assert!(view(&[1, 12], &[usize::MAX, 1]).is_some() && view(&[0, 5], &[9, 9]).is_some());
        assert!(view(&[3, 4], &[5, 1]).is_none() && view(&[13], &[0]).is_none());
        assert!(view(&[2], &[usize::MAX]).is_none() && view(&[2, 2], &[1]).is_none());
        assert!(view(&[usize::MAX, 2], &[1, 1]).is_none());
    }
}
