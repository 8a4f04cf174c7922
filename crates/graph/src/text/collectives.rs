//! Collectives and the position of a device in a mesh.

use super::types::mlir;
use super::{Context, Writer};
use crate::op::{Axes, Collective};
use fullshard_core::{DType, TensorType};
use std::rc::Rc;

const CHANNEL: &str = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>";

impl Writer {
    /// The text of a collective.
    pub(super) fn collective(
        &mut self,
        collective: &Collective,
        axes: &Axes,
        context: &Context<'_>,
    ) -> String {
        let operands = context.operands();
        let dtype = context.output_types[0].dtype;
        match collective {
            Collective::AllGather { dim } => format!(
                "\"stablehlo.all_gather\"({operands}) <{{all_gather_dim = {dim} : i64, {CHANNEL}, {}, \
                 use_global_device_ids}}>",
                groups(axes)
            ),
            Collective::ReduceScatter { dim } => {
                let region = self.reducer(crate::op::Reduction::Sum, dtype);
                format!(
                    "\"stablehlo.reduce_scatter\"({operands}) <{{{CHANNEL}, {}, scatter_dimension = \
                     {dim} : i64, use_global_device_ids}}> {region}",
                    groups(axes)
                )
            }
            Collective::AllReduce { kind } => {
                let region = self.reducer(*kind, dtype);
                format!(
                    "\"stablehlo.all_reduce\"({operands}) <{{{CHANNEL}, {}, use_global_device_ids}}> \
                     {region}",
                    groups(axes)
                )
            }
            Collective::AllToAll { split, concat } => format!(
                "\"stablehlo.all_to_all\"({operands}) <{{{CHANNEL}, concat_dimension = {concat} : i64, \
                 {}, split_count = {} : i64, split_dimension = {split} : i64}}>",
                groups(axes),
                axes.size()
            ),
            Collective::Permute { pairs } => format!(
                "\"stablehlo.collective_permute\"({operands}) <{{{CHANNEL}, source_target_pairs = {}}}>",
                source_target_pairs(pairs, axes)
            ),
        }
    }

    /// The position of this device along axes.
    ///
    /// A device has an id only where every axis is manual. Where some are not, the position is
    /// computed in a region that is also manual over those.
    pub(super) fn axis_index(&mut self, axes: &Axes, context: &Context<'_>) -> Rc<str> {
        let path = context.path;
        if axes.size() == 1 {
            return self.number(&TensorType::scalar(DType::I32), "0", path);
        }
        let is_automatic =
            |axis: &usize| !(self.manual_axes.contains(axis) || axes.mesh.is_across(*axis));
        let others = (0..axes.mesh.axes().len()).filter(is_automatic);
        let others: Vec<String> =
            others.map(|axis| format!("\"{}\"", axes.mesh.axis_name(axis))).collect();
        if others.is_empty() || self.manual_axes.is_empty() {
            return self.device_position(axes, path);
        }
        let margin = self.margin();
        let body = self.nested(|writer| {
            let position = writer.device_position(axes, path);
            writer.line(&format!("sdy.return {position} : tensor<i32>"));
        });
        let text = format!(
            "sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, []>] \
             manual_axes={{{}}} () {{\n{body}{margin}}}",
            others.join(", ")
        );
        self.op_one(&text, "() -> tensor<i32>", path)
    }

    /// The position of this device along axes, from its id in the mesh.
    fn device_position(&mut self, axes: &Axes, path: &Rc<str>) -> Rc<str> {
        let ty = TensorType::scalar(DType::I32);
        let scalar = mlir(&ty);
        let device = (!axes.part(false).axes.is_empty()).then(|| self.device_id(path));
        let mut index = self.number(&ty, "0", path);
        for &axis in &axes.axes {
            let size = self.number(&ty, &axes.mesh.axis_size(axis).to_string(), path);
            let across = axes.mesh.is_across(axis);
            let number = match (&device, across) {
                (Some(device), false) => device.clone(),
                _ => self.process_index(path),
            };
            let part = Axes { mesh: axes.mesh.clone(), axes: vec![axis] }.part(across);
            let position = self.position(&number, &part.mesh.sizes(), part.axes[0], path);
            index = self.op_one(&format!("stablehlo.multiply {index}, {size}"), &scalar, path);
            index = self.op_one(&format!("stablehlo.add {index}, {position}"), &scalar, path);
        }
        index
    }

    /// The id of this device among those of its process.
    fn device_id(&mut self, path: &Rc<str>) -> Rc<str> {
        let device = self.op_one("stablehlo.partition_id", "tensor<ui32>", path);
        let text = format!("stablehlo.convert {device}");
        self.op_one(&text, "(tensor<ui32>) -> tensor<i32>", path)
    }
}

fn groups(axes: &Axes) -> String {
    let axes = &axes.part(false);
    let groups = axes.groups();
    let (count, size) = (groups.len(), axes.size());
    format!("replica_groups = dense<{}> : tensor<{count}x{size}xi64>", nested(&groups))
}

/// The pairs of every group, as devices of the mesh.
fn source_target_pairs(pairs: &[(usize, usize)], axes: &Axes) -> String {
    let groups = axes.part(false).groups();
    let all = groups
        .iter()
        .flat_map(|group| pairs.iter().map(|&(from, to)| vec![group[from], group[to]]));
    let all: Vec<Vec<usize>> = all.collect();
    format!("dense<{}> : tensor<{}x2xi64>", nested(&all), all.len())
}

fn nested(rows: &[Vec<usize>]) -> String {
    let rows: Vec<String> = rows.iter().map(|row| super::list(row)).collect();
    format!("[{}]", rows.join(", "))
}
