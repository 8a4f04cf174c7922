//! Inputs and outputs of a program per device.

use crate::dtype;
use crate::error::Result;
use crate::hlo;
use crate::tiling::Tiling;
use fullshard_core::TensorType;
use std::sync::Arc;

/// Inputs and outputs of a program per device.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// Input types.
    pub parameters: Vec<TensorType>,
    /// Output types.
    pub results: Vec<TensorType>,
    /// Indices of donated parameters, in order.
    pub donated: Vec<usize>,
    /// The tiling of each parameter, where the program states it.
    pub parameter_tilings: Vec<Option<Tiling>>,
    /// The tiling of each result, where the program states it.
    pub result_tilings: Vec<Option<Tiling>>,
}

/// A tensor type with its layout on a device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeviceLayout {
    pub(crate) ty: TensorType,
    /// The dimension order, minor to major, where known.
    pub(crate) order: Option<Vec<i64>>,
}

impl Signature {
    /// Reads the signature of `program`, which runs on `devices` devices over all processes.
    pub(crate) fn from_hlo(
        program: &str,
        signature: &hlo::Signature,
        devices: usize,
    ) -> Result<Signature> {
        let types = |shapes: &[hlo::Shape], what: &str| -> Result<Vec<TensorType>> {
            let named = |i| format!("{what} {i} of `{program}`");
            shapes.iter().enumerate().map(|(i, s)| dtype::from_shape(s, &named(i))).collect()
        };
        let tilings = |types: &[TensorType], shardings: &[Option<hlo::OpSharding>]| {
            let typed = types.iter().zip(shardings);
            let read = |ty: &TensorType, sharding: &hlo::OpSharding| {
                Tiling::from_hlo(sharding, ty.dims.len(), devices).ok()
            };
            typed.map(|(ty, it)| it.as_ref().and_then(|sharding| read(ty, sharding))).collect()
        };
        let parameters = types(&signature.parameters, "argument")?;
        let results = types(&signature.results, "result")?;
        Ok(Signature {
            donated: signature.donated.clone(),
            parameter_tilings: tilings(&parameters, &signature.parameter_shardings),
            result_tilings: tilings(&results, &signature.result_shardings),
            parameters,
            results,
        })
    }
}

impl DeviceLayout {
    /// Tensors of these types in the dimension orders of `shapes`.
    pub(crate) fn from_hlo(types: &[TensorType], shapes: &[hlo::Shape]) -> Vec<Arc<DeviceLayout>> {
        let order =
            |shape: &hlo::Shape| Some(shape.as_array()?.layout.as_ref()?.minor_to_major.clone());
        let typed = types.iter().zip(shapes);
        typed
            .map(|(ty, shape)| Arc::new(DeviceLayout { ty: ty.clone(), order: order(shape) }))
            .collect()
    }

    /// The two orders, if they are known and differ.
    pub(crate) fn order_conflict<'a>(
        &'a self,
        other: &'a DeviceLayout,
    ) -> Option<(&'a [i64], &'a [i64])> {
        let orders = self.order.as_deref().zip(other.order.as_deref());
        orders.filter(|(ours, theirs)| ours != theirs)
    }
}
