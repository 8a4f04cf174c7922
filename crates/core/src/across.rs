//! Meshes over several processes whose compilers see one process each.
//!
//! Axes across processes, or parts of axes, are marked. A program on such a mesh is that of one
//! process: it names only the other axes, its tensors are the process's parts of the full ones, and
//! collectives over marked axes are left to something else than the compiler.

use crate::TensorType;
use crate::mesh::{Mesh, MeshError};
use crate::sharding::Sharding;
use std::ops::Range;

impl Mesh {
    /// The mesh with the axes marked that are across processes, each of which has the same number
    /// of consecutive devices. An axis that is partly across processes is split.
    pub fn across_processes(&self, processes: usize) -> Result<Mesh, MeshError> {
        let fail = || MeshError::Processes { sizes: self.sizes(), processes };
        let (mut left, mut marked, mut parts) = (processes, 0, Vec::new());
        for size in self.sizes() {
            if left == 1 {
                break;
            }
            let across = left.min(size);
            if across == 0 || !left.is_multiple_of(across) || !size.is_multiple_of(across) {
                return Err(fail());
            }
            parts.push(if across < size { vec![across, size / across] } else { Vec::new() });
            (left, marked) = (left / across, marked + 1);
        }
        if left != 1 {
            return Err(fail());
        }
        let mut axes = self.split(&parts)?.axes.to_vec();
        axes.iter_mut().take(marked).for_each(|axis| axis.across = true);
        Ok(Mesh { axes: axes.into() })
    }

    /// Whether an axis, by its position, is across processes.
    pub fn is_across(&self, axis: usize) -> bool {
        self.axes[axis].across
    }

    /// The number of processes, as far as they are marked.
    pub fn processes(&self) -> usize {
        self.axes.iter().filter(|axis| axis.across).map(|axis| axis.size).product()
    }

    /// The mesh of the devices of one process.
    pub fn in_process(&self) -> Mesh {
        self.part(false)
    }

    /// The mesh of the processes.
    pub fn of_processes(&self) -> Mesh {
        self.part(true)
    }

    fn part(&self, across: bool) -> Mesh {
        Mesh { axes: self.axes.iter().filter(|axis| axis.across == across).cloned().collect() }
    }

    /// The positions that axes across processes, or those that are not, have in the mesh of their
    /// kind. Other axes are left out.
    pub fn positions_in_part(&self, axes: &[usize], across: bool) -> Vec<usize> {
        let of_kind = axes.iter().filter(|&&axis| self.axes[axis].across == across);
        let before = |axis: usize| self.axes[..axis].iter().filter(|it| it.across == across);
        of_kind.map(|&axis| before(axis).count()).collect()
    }
}

impl Sharding {
    /// The sharding over the devices of one process of its part of a tensor.
    pub fn in_process(&self) -> Sharding {
        let dims = self.dims.iter().map(|axes| self.mesh.positions_in_part(axes, false)).collect();
        Sharding { mesh: self.mesh.in_process(), dims }
    }

    /// What some devices hold of a dimension of this size, from the first to the last element.
    pub fn span(&self, dim: usize, size: usize, devices: Range<usize>) -> Range<usize> {
        let axes = self.dims.get(dim).map_or(&[][..], Vec::as_slice);
        let sizes = self.mesh.sizes();
        let part = |device: usize| {
            let along = |axis: usize| {
                let stride: usize = sizes[axis + 1..].iter().product();
                device / stride % sizes[axis]
            };
            axes.iter().fold(0, |part, &axis| part * sizes[axis] + along(axis))
        };
        let each = size / self.mesh.group_size(axes);
        let (first, last) = (devices.clone().map(part).min(), devices.map(part).max());
        first.unwrap_or(0) * each..last.map_or(0, |last| last + 1) * each
    }

    /// The part of a tensor that a process has.
    pub fn process_part(&self, ty: &TensorType) -> Result<TensorType, MeshError> {
        let across = (0..self.mesh.axes.len()).filter(|&axis| self.mesh.is_across(axis));
        self.local(ty, &across.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn mesh(axes: &[(&str, usize)], processes: usize) -> Result<Mesh, MeshError> {
        Mesh::new(axes)?.across_processes(processes)
    }

    #[test]
    fn axes_are_split_where_processes_meet() {
        let split = mesh(&[("fsdp", 4)], 2).unwrap();
        assert_eq!(split.axes().collect::<Vec<_>>(), [("fsdp_0", 2), ("fsdp_1", 2)]);
        assert!(split.is_across(0) && !split.is_across(1));
        assert_eq!((split.processes(), split.in_process().devices()), (2, 2));
        let whole = mesh(&[("data", 2), ("fsdp", 3)], 6).unwrap();
        assert_eq!((whole.axes().len(), whole.processes()), (2, 6));
        let first = mesh(&[("data", 3), ("fsdp", 2), ("tensor", 2)], 3).unwrap();
        assert_eq!(first.in_process().sizes(), [2, 2]);
        assert_eq!(first.of_processes().sizes(), [3]);
        assert_eq!(first.positions_in_part(&[0, 2, 1], false), [1, 0]);
        assert_eq!(mesh(&[("fsdp", 2)], 1).unwrap(), Mesh::new(&[("fsdp", 2)]).unwrap());
    }

    #[test]
    fn axes_that_do_not_divide_are_refused() {
        for (axes, processes) in
            [(&[("fsdp", 2), ("tensor", 3)][..], 3), (&[("fsdp", 2)], 4), (&[("fsdp", 6)], 4)]
        {
            let error = mesh(axes, processes).unwrap_err().to_string();
            assert!(error.contains(&format!("{processes} processes")), "{error}");
        }
    }

    #[test]
    fn a_process_has_its_part_of_a_tensor() {
        let mesh = mesh(&[("fsdp", 4), ("tensor", 2)], 2).unwrap();
        let sharding = mesh.sharding(&[&["fsdp_0", "fsdp_1"], &["tensor"]]).unwrap();
        let ty = TensorType::new(DType::F32, &[8, 6]);
        assert_eq!(sharding.process_part(&ty).unwrap().dims, [4, 6]);
        assert_eq!(sharding.in_process().to_string(), "[{\"fsdp_1\"}, {\"tensor\"}]");
        assert_eq!([sharding.span(0, 8, 0..4), sharding.span(0, 8, 4..8)], [0..4, 4..8]);
        assert_eq!([sharding.span(1, 6, 0..4), sharding.span(0, 8, 2..3)], [0..6, 2..4]);
    }
}
