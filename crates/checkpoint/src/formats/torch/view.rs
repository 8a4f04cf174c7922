//! A tensor as a view of bytes in a file: where it starts, and its strides.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes read at once to gather a tensor that is not contiguous.
const WINDOW: usize = 16 << 20;

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
        let elements = dims.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim))?;
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

    /// Passes over the part of the file that has these elements, window by window.
    fn gather(&self, file: &File, first: usize, out: &mut [u8]) -> io::Result<()> {
        let count = out.len() / self.width;
        let places = || Offsets::new(self, first).take(count).map(|offset| offset * self.width);
        let (Some(low), Some(high)) = (places().min(), places().max()) else { return Ok(()) };
        let end = high + self.width;
        let window_bytes = WINDOW / self.width * self.width;
        let mut window = vec![0; window_bytes.min(end - low)];
        for from in (low..end).step_by(window_bytes) {
            let length = window_bytes.min(end - from);
            file.read_exact_at(&mut window[..length], self.start + from as u64)?;
            for (place, element) in places().zip(out.chunks_exact_mut(self.width)) {
                if (from..from + length).contains(&place) {
                    element.copy_from_slice(&window[place - from..][..self.width]);
                }
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
