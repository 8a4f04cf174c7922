//! Parts of a tensor, as devices hold and checkpoints store them: ranges of elements, and boxes.
//!
//! The elements of every part are in the row-major order of the tensor. So a part is a growing list
//! of elements, and two parts are compared by leaps: the next element of one, the next of the other
//! from there on, until both are the same.

use std::fmt;
use std::iter;
use std::ops::Range;

/// A part of a tensor: a range of its elements in row-major order, or a box with a range per dim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// One range of elements, or one per dim of a tensor that has several.
    ranges: Vec<Range<usize>>,
}

/// Elements that are contiguous in two places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The position of the first in one place.
    pub from: usize,
    /// Its position in the other.
    pub to: usize,
    /// The number of elements.
    pub count: usize,
}

impl From<Range<usize>> for Part {
    fn from(elements: Range<usize>) -> Part {
        Part { ranges: vec![elements] }
    }
}

impl Part {
    /// The part with these ranges of a tensor's dims, one each: a range of elements if they are
    /// contiguous, and a box if not.
    pub fn tile(ranges: &[Range<usize>], dims: &[usize]) -> Part {
        let tile = Strided::new(ranges, dims);
        match tile.elements {
            elements if elements == 0 || elements == tile.run => tile.span().into(),
            _ => Part { ranges: ranges.to_vec() },
        }
    }

    /// Whether it is a box, and no range of elements.
    pub fn is_box(&self) -> bool {
        self.ranges.len() > 1
    }

    /// The dims of its values: those of a box, or one.
    pub fn dims(&self) -> Vec<usize> {
        self.ranges.iter().map(ExactSizeIterator::len).collect()
    }

    /// The number of its elements.
    pub fn elements(&self) -> usize {
        self.ranges.iter().map(ExactSizeIterator::len).product()
    }

    /// Whether a tensor of these dims has it.
    pub fn fits(&self, dims: &[usize]) -> bool {
        let flat = [dims.iter().product()];
        let dims = if self.is_box() { dims } else { &flat };
        let inside =
            |(range, &dim): (&Range<usize>, &usize)| range.start <= range.end && range.end <= dim;
        self.ranges.len() == dims.len() && self.ranges.iter().zip(dims).all(inside)
    }

    /// The elements of a tensor of these dims from its first to its last.
    pub fn span(&self, dims: &[usize]) -> Range<usize> {
        Strided::new(&self.ranges, dims).span()
    }

    /// The same elements in order, in parts of at most `most`.
    pub fn chunks(&self, most: usize) -> Vec<Part> {
        let cut = self.ranges.iter().position(|range| range.len() > 1);
        let Some(dim) = cut.filter(|_| self.elements() > most) else { return vec![self.clone()] };
        let range = &self.ranges[dim];
        let step = (most / (self.elements() / range.len())).max(1);
        let chunk = |start| {
            let mut chunk = self.clone();
            chunk.ranges[dim] = start..(start + step).min(range.end);
            chunk.chunks(most)
        };
        range.clone().step_by(step).flat_map(chunk).collect()
    }

    /// The runs that take it out of a tensor of these dims, in order.
    pub fn runs(&self, dims: &[usize]) -> impl Iterator<Item = Run> + use<> {
        Part::from(0..usize::MAX).overlap(self, dims)
    }

    /// The runs from it to another part of a tensor of these dims: the elements of both, in order.
    pub fn overlap(&self, other: &Part, dims: &[usize]) -> impl Iterator<Item = Run> + use<> {
        let (a, b) = (Strided::new(&self.ranges, dims), Strided::new(&other.ranges, dims));
        let mut element = if self.is_beside(other) { usize::MAX } else { 0 };
        let mut rows = iter::from_fn(move || next_run(&a, &b, &mut element)).peekable();
        iter::from_fn(move || {
            let mut run = rows.next()?;
            let follows = |run: &Run, next: &Run| {
                (next.from, next.to) == (run.from + run.count, run.to + run.count)
            };
            while let Some(more) = rows.next_if(|next| follows(&run, next)) {
                run.count += more.count;
            }
            Some(run)
        })
    }

    /// Whether it has an element in common with another part of a tensor of these dims.
    pub fn overlaps(&self, other: &Part, dims: &[usize]) -> bool {
        match self.is_box() && other.is_box() {
            true => !self.is_beside(other),
            false => self.overlap(other, dims).next().is_some(),
        }
    }

    /// Whether two boxes have nothing in common, by one of their dims.
    fn is_beside(&self, other: &Part) -> bool {
        let beside =
            |(a, b): (&Range<usize>, &Range<usize>)| a.start.max(b.start) >= a.end.min(b.end);
        self.is_box() && other.is_box() && self.ranges.iter().zip(&other.ranges).any(beside)
    }

    /// The part of a text such as `[0:128]` or `[0:128,256:512]`, as it is displayed.
    pub fn parse(text: &str) -> Option<Part> {
        let ranges = text.strip_prefix('[')?.strip_suffix(']')?.split(',').map(|range| {
            let (start, end) = range.split_once(':')?;
            let range: Range<usize> = start.parse().ok()?..end.parse().ok()?;
            (range.start <= range.end).then_some(range)
        });
        Some(Part { ranges: ranges.collect::<Option<_>>()? })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |range: &Range<usize>| format!("{}:{}", range.start, range.end);
        write!(f, "[{}]", self.ranges.iter().map(range).collect::<Vec<_>>().join(","))
    }
}

/// The ranges of a part with the strides of its tensor.
struct Strided {
    ranges: Vec<Range<usize>>,
    strides: Vec<usize>,
    elements: usize,
    /// The number of elements that are contiguous in the tensor.
    run: usize,
}

impl Strided {
    fn new(ranges: &[Range<usize>], dims: &[usize]) -> Strided {
        let elements = ranges.iter().map(ExactSizeIterator::len).product();
        let (mut strides, mut run) = (vec![1; ranges.len()], 1);
        if elements == 0 {
            // The dims may be zero, or too large to multiply.
            return Strided { ranges: ranges.to_vec(), strides, elements, run };
        }
        for dim in (1..ranges.len()).rev() {
            strides[dim - 1] = strides[dim] * dims[dim];
        }
        for (dim, range) in ranges.iter().enumerate().rev() {
            run *= range.len();
            if dim > 0 && range.len() < dims[dim] {
                break;
            }
        }
        Strided { ranges: ranges.to_vec(), strides, elements, run }
    }

    /// From the first element to the last.
    fn span(&self) -> Range<usize> {
        if self.elements == 0 {
            return 0..0;
        }
        let dims = || self.ranges.iter().zip(&self.strides);
        let first = dims().map(|(range, stride)| range.start * stride).sum();
        let last: usize = dims().map(|(range, stride)| (range.end - 1) * stride).sum();
        first..last + 1
    }

    /// The number of its elements before an element of the tensor.
    fn position(&self, element: usize) -> usize {
        let (mut position, mut rest, mut inside) = (0, element, true);
        for (range, stride) in self.ranges.iter().zip(&self.strides) {
            let index = rest / stride;
            let before = index.clamp(range.start, range.end) - range.start;
            position = position * range.len() + if inside { before } else { 0 };
            inside &= range.contains(&index);
            rest %= stride;
        }
        position
    }

    /// The element of the tensor at a position.
    fn element(&self, mut position: usize) -> Option<usize> {
        if position >= self.elements {
            return None;
        }
        let mut element = 0;
        for (range, stride) in self.ranges.iter().zip(&self.strides).rev() {
            element += (range.start + position % range.len()) * stride;
            position /= range.len();
        }
        Some(element)
    }
}

/// The next elements that two parts have in common, from an element of the tensor on.
fn next_run(a: &Strided, b: &Strided, element: &mut usize) -> Option<Run> {
    loop {
        let (from, to) = (a.position(*element), b.position(*element));
        let (in_a, in_b) = (a.element(from)?, b.element(to)?);
        if in_a == in_b {
            let count = (a.run - from % a.run).min(b.run - to % b.run);
            *element = in_a + count;
            return Some(Run { from, to, count });
        }
        *element = in_a.max(in_b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: [usize; 3] = [2, 3, 2];

    fn ranges(limit: usize) -> Vec<Range<usize>> {
        (0..=limit).flat_map(|start| (start..=limit).map(move |end| start..end)).collect()
    }

    /// Every part of a small tensor, with its elements by their coordinates.
    fn parts() -> Vec<(Part, Vec<usize>)> {
        let flat = ranges(12).into_iter().map(|range| (range.clone().into(), range.collect()));
        let mut parts: Vec<(Part, Vec<usize>)> = flat.collect();
        for (i, j, k) in ranges(2).into_iter().flat_map(|i| {
            ranges(3).into_iter().flat_map(move |j| {
                let i = i.clone();
                ranges(2).into_iter().map(move |k| (i.clone(), j.clone(), k))
            })
        }) {
            let inside = |e: &usize| {
                i.contains(&(e / 6)) && j.contains(&(e / 2 % 3)) && k.contains(&(e % 2))
            };
            let elements = (0..12).filter(inside).collect();
            parts.push((Part::tile(&[i.clone(), j.clone(), k.clone()], &DIMS), elements));
        }
        parts
    }

    #[test]
    fn parts_overlap_in_the_elements_of_both() {
        let parts = parts();
        for (a, in_a) in &parts {
            for (b, in_b) in &parts {
                let mut found = Vec::new();
                for Run { from, to, count } in a.overlap(b, &DIMS) {
                    assert_eq!(in_a[from..][..count], in_b[to..][..count], "{a} {b}");
                    found.extend_from_slice(&in_a[from..][..count]);
                }
                let both = in_a.iter().filter(|element| in_b.contains(element));
                assert!(both.eq(&found), "{a} {b}: {found:?}");
                assert_eq!(a.overlaps(b, &DIMS), !found.is_empty(), "{a} {b}");
            }
        }
    }

    #[test]
    fn runs_take_parts_out_of_the_tensor() {
        for (part, elements) in parts() {
            let mut next = 0;
            for run in part.runs(&DIMS) {
                assert_eq!(run.to, next);
                assert!(
                    (run.from..run.from + run.count).eq(elements[run.to..][..run.count].to_vec())
                );
                next += run.count;
            }
            assert_eq!((next, part.elements()), (elements.len(), elements.len()), "{part}");
            assert!(part.fits(&DIMS) && Part::parse(&part.to_string()) == Some(part.clone()));
            if let (Some(first), Some(last)) = (elements.first(), elements.last()) {
                assert_eq!(part.span(&DIMS), *first..last + 1);
                assert_eq!(part.is_box(), last + 1 - first > elements.len(), "{part}");
            }
        }
    }

    #[test]
    fn chunks_are_small_and_in_order() {
        for (part, elements) in parts() {
            for most in 1..=13 {
                let chunks = part.chunks(most);
                assert!(chunks.iter().all(|chunk| chunk.elements() <= most), "{part} by {most}");
                let runs = chunks.iter().flat_map(|chunk| chunk.runs(&DIMS).collect::<Vec<_>>());
                let found = runs.flat_map(|run| run.from..run.from + run.count);
                assert!(found.eq(elements.iter().copied()), "{part} by {most}");
            }
        }
    }

    #[test]
    fn scalars_and_vectors_have_ranges_of_elements() {
        assert_eq!(Part::tile(&[], &[]), Part::from(0..1));
        assert_eq!(Part::tile(&vec![2..5; 1], &[7]), Part::from(2..5));
        assert_eq!(Part::tile(&[0..0, 0..3], &[0, 3]), Part::from(0..0));
        assert!(Part::from(0..1).runs(&[]).eq([Run { from: 0, to: 0, count: 1 }]));
    }

    #[test]
    fn parts_without_elements_have_no_runs() {
        let huge = 1 << 62;
        for (text, dims) in [
            ("[3:3]".to_owned(), vec![2, 2]),
            ("[0:4,0:0]".to_owned(), vec![4, 0]),
            (format!("[0:0,1:{huge},{huge}:{huge}]"), vec![0, huge, huge]),
        ] {
            let part = Part::parse(&text).unwrap();
            assert!(part.fits(&dims) && part.span(&dims) == (0..0), "{text}");
            assert_eq!(part.runs(&dims).next(), None, "{text}");
            assert_eq!(part.overlap(&(0..9).into(), &dims).next(), None, "{text}");
        }
    }

    #[test]
    fn rejects_what_no_tensor_has() {
        for text in ["", "[]", "[1]", "[2:1]", "[0:1", "[0:1,]", "[0:1,2]", "[-1:2]", "[a:b]"] {
            assert_eq!(Part::parse(text), None, "{text}");
        }
        for text in ["[0:13]", "[0:2,0:3]", "[0:3,0:1,0:1]", "[0:1,0:1,0:1,0:1]"] {
            assert!(!Part::parse(text).unwrap().fits(&DIMS), "{text}");
        }
    }
}
