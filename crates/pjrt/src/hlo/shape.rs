//! Shapes and layouts, printed as in HLO text.

use std::fmt;

use super::element::ElementType;
use super::proto;

/// The type of a value: an array, a tuple of values, or a buffer holding one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// A dense array; also tokens and opaque values, which have no dims.
    Array(ArrayShape),
    /// A tuple of values.
    Tuple(Vec<Shape>),
    /// A mutable buffer around a value.
    Buffer(Box<Shape>),
}

/// A dense array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrayShape {
    /// The type of the elements.
    pub element: ElementType,
    /// The extent of each dim, outermost first; the bound of a dynamic dim.
    pub dims: Vec<usize>,
    /// Whether any dim is dynamic.
    pub dynamic: bool,
    /// The memory layout, if assigned.
    pub layout: Option<Layout>,
}

/// A memory layout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The dims, minor to major.
    pub minor_to_major: Vec<i64>,
    /// Nested tiles, outermost first; empty for a linear layout.
    pub tiles: Vec<Vec<i64>>,
    /// Bits per element if packed, or 0.
    pub element_bits: i64,
    /// The memory space; 0 is the device's main memory.
    pub memory_space: i64,
}

impl Shape {
    pub(super) fn decode(shape: &proto::Shape) -> Result<Self, String> {
        let element = ElementType::from_number(shape.element_type);
        match (element, shape.tuple_shapes.as_slice()) {
            (ElementType::Tuple, members) => {
                members.iter().map(Self::decode).collect::<Result<_, _>>().map(Self::Tuple)
            }
            (ElementType::Buffer, [inner]) => Ok(Self::Buffer(Box::new(Self::decode(inner)?))),
            _ => ArrayShape::decode(element, shape).map(Self::Array),
        }
    }

    /// Bytes of the elements, without tile padding; `None` if an element type has no known width.
    pub fn byte_size(&self) -> Option<u64> {
        match self {
            Self::Array(array) => array.byte_size(),
            Self::Buffer(inner) => inner.byte_size(),
            Self::Tuple(members) => members
                .iter()
                .try_fold(0u64, |sum, member| Some(sum.saturating_add(member.byte_size()?))),
        }
    }

    /// The array shape; `None` for anything else.
    pub fn as_array(&self) -> Option<&ArrayShape> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The members of a tuple; `None` for anything else.
    pub fn members(&self) -> Option<&[Shape]> {
        match self {
            Self::Tuple(members) => Some(members),
            _ => None,
        }
    }

    /// The leaves of nested tuples, in order; a shape that is not a tuple is its own leaf.
    pub fn leaves(&self) -> Vec<&Shape> {
        match self {
            Self::Tuple(members) => members.iter().flat_map(Self::leaves).collect(),
            leaf => vec![leaf],
        }
    }
}

impl ArrayShape {
    fn decode(element: ElementType, shape: &proto::Shape) -> Result<Self, String> {
        let dims = shape
            .dimensions
            .iter()
            .map(|&dim| usize::try_from(dim).map_err(|_| format!("a dim has extent {dim}")))
            .collect::<Result<_, _>>()?;
        let layout = shape.layout.as_ref().map(Layout::decode);
        Ok(Self { element, dims, dynamic: shape.is_dynamic_dimension.contains(&true), layout })
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        if self.dims.contains(&0) {
            return 0;
        }
        self.dims.iter().fold(1, |product: u64, &dim| product.saturating_mul(dim as u64))
    }

    /// Bytes of the elements, without tile padding; `None` if the element type has no known width.
    ///
    /// Elements narrower than a byte take one byte each unless the layout packs them.
    pub fn byte_size(&self) -> Option<u64> {
        let packed = self.layout.as_ref().map_or(0, |layout| layout.element_bits);
        let bits = match u64::try_from(packed) {
            Ok(bits @ 1..) => bits,
            _ => u64::from(self.element.bits()?).next_multiple_of(8),
        };
        let total = u128::from(self.elements()) * u128::from(bits);
        Some(u64::try_from(total.div_ceil(8)).unwrap_or(u64::MAX))
    }
}

impl ArrayShape {
    /// Bytes in memory: the dims of the outermost tile are padded to it.
    pub fn padded_byte_size(&self) -> Option<u64> {
        let tile = self.layout.as_ref().and_then(|layout| layout.tiles.first());
        let Some((layout, tile)) = self.layout.as_ref().zip(tile) else { return self.byte_size() };
        let order = layout.minor_to_major.iter().filter_map(|&dim| usize::try_from(dim).ok());
        let mut padded = self.clone();
        for (dim, &extent) in order.zip(tile.iter().rev()) {
            let extent = usize::try_from(extent).ok().filter(|&extent| extent > 0);
            if let (Some(length), Some(extent)) = (padded.dims.get_mut(dim), extent) {
                *length = length.next_multiple_of(extent);
            }
        }
        padded.byte_size()
    }

    /// Whether it is in the device's main memory.
    pub fn in_main_memory(&self) -> bool {
        self.layout.as_ref().is_none_or(|layout| layout.memory_space == 0)
    }

    /// Whether it is in the memory of the host.
    pub fn in_host_memory(&self) -> bool {
        self.layout.as_ref().is_some_and(|layout| layout.memory_space == Layout::HOST)
    }
}

impl Layout {
    /// The memory space of the host.
    const HOST: i64 = 5;

    fn decode(layout: &proto::Layout) -> Self {
        Self {
            minor_to_major: layout.minor_to_major.clone(),
            tiles: layout.tiles.iter().map(|tile| tile.dimensions.clone()).collect(),
            element_bits: layout.element_size_in_bits,
            memory_space: layout.memory_space,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(array) => array.fmt(f),
            Self::Buffer(inner) => write!(f, "b({inner})"),
            Self::Tuple(members) => {
                f.write_str("(")?;
                write_list(f, members, ", ")?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for ArrayShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.element)?;
        write_list(f, &self.dims, ",")?;
        f.write_str("]")?;
        match &self.layout {
            Some(layout) if *layout != Layout::default() => layout.fmt(f),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        write_list(f, &self.minor_to_major, ",")?;
        if !self.tiles.is_empty() || self.element_bits != 0 || self.memory_space != 0 {
            f.write_str(":")?;
        }
        for (position, tile) in self.tiles.iter().enumerate() {
            f.write_str(if position == 0 { "T(" } else { "(" })?;
            write_list(f, tile.iter().map(|&dim| TileDim(dim)), ",")?;
            f.write_str(")")?;
        }
        if self.element_bits != 0 {
            write!(f, "E({})", self.element_bits)?;
        }
        if self.memory_space != 0 {
            write!(f, "S({})", self.memory_space)?;
        }
        f.write_str("}")
    }
}

/// A tile extent; the smallest integer means that this dim is combined with the next.
struct TileDim(i64);

impl fmt::Display for TileDim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == i64::MIN { f.write_str("*") } else { self.0.fmt(f) }
    }
}

/// Writes items with a separator between them.
pub(super) fn write_list<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: impl IntoIterator<Item = T>,
    separator: &str,
) -> fmt::Result {
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            f.write_str(separator)?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(element: ElementType, dims: &[usize], layout: Option<Layout>) -> Shape {
        Shape::Array(ArrayShape { element, dims: dims.to_vec(), dynamic: false, layout })
    }

    #[test]
    fn prints_as_hlo_text() {
        let tiled = Layout {
            minor_to_major: vec![1, 0],
            tiles: vec![vec![8, 128], vec![2, 1]],
            ..Layout::default()
        };
        let spaced = Layout { memory_space: 5, ..tiled.clone() };
        let bf16 = |layout| array(ElementType::Bf16, &[8, 128], Some(layout)).to_string();
        assert_eq!(bf16(tiled), "bf16[8,128]{1,0:T(8,128)(2,1)}");
        assert_eq!(bf16(spaced), "bf16[8,128]{1,0:T(8,128)(2,1)S(5)}");
        let scalar = array(ElementType::S32, &[], Some(Layout::default()));
        let pair = Shape::Tuple(vec![scalar, array(ElementType::Token, &[], None)]);
        assert_eq!(pair.to_string(), "(s32[], token[])");
    }

    #[test]
    fn pads_to_tiles() {
        let padded = |dims: &[usize], order: &[i64], tiles: &[&[i64]]| {
            let layout = Layout {
                minor_to_major: order.to_vec(),
                tiles: tiles.iter().map(|tile| tile.to_vec()).collect(),
                ..Layout::default()
            };
            let shape = array(ElementType::Bf16, dims, Some(layout));
            shape.as_array().unwrap().padded_byte_size().unwrap()
        };
        assert_eq!(padded(&[3, 5, 100], &[2, 1, 0], &[&[8, 128], &[2, 1]]), 3 * 8 * 128 * 2);
        assert_eq!(padded(&[100, 5, 3], &[0, 1, 2], &[&[8, 128]]), 128 * 8 * 3 * 2);
        assert_eq!(padded(&[130], &[0], &[&[128]]), 256 * 2);
        assert_eq!(padded(&[3, 5], &[1, 0], &[]), 30);
    }

    #[test]
    fn byte_sizes() {
        assert_eq!(array(ElementType::Bf16, &[3, 5], None).byte_size(), Some(30));
        assert_eq!(array(ElementType::Pred, &[7], None).byte_size(), Some(7));
        assert_eq!(array(ElementType::S4, &[7], None).byte_size(), Some(7));
        let packed = Layout { element_bits: 4, ..Layout::default() };
        assert_eq!(array(ElementType::S4, &[7], Some(packed)).byte_size(), Some(4));
        assert_eq!(array(ElementType::F32, &[usize::MAX, 9], None).byte_size(), Some(u64::MAX));
        assert_eq!(array(ElementType::F32, &[usize::MAX, 9, 0], None).byte_size(), Some(0));
        assert_eq!(array(ElementType::Unknown(77), &[2], None).byte_size(), None);
    }
}
