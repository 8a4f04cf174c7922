//! What a program takes and gives on each device.

use crate::dtype;
use crate::error::Result;
use crate::hlo;
use crate::tiling::Tiling;
use fullshard_core::TensorType;
use std::sync::Arc;

/// What a program takes and gives on each device.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// What it takes.
    pub parameters: Vec<TensorType>,
    /// What it gives.
    pub results: Vec<TensorType>,
    /// The parameters whose buffers it may take over, in order.
    pub donated: Vec<usize>,
    /// How each parameter is a part of a logical tensor, where the program says so.
    pub parameter_tilings: Vec<Option<Tiling>>,
    /// How each result is a part of a logical tensor, where the program says so.
    pub result_tilings: Vec<Option<Tiling>>,
}

/// A tensor as a device stores it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored {
    pub(crate) ty: TensorType,
    /// The dimensions from the fastest-varying to the slowest, where that is known.
    pub(crate) order: Option<Vec<i64>>,
}

impl Signature {
    /// Reads the signature of `program`, which runs on so many devices.
    pub(crate) fn from_hlo(
        program: &str,
        signature: &hlo::Signature,
        devices: usize,
    ) -> Result<Signature> {
        let types = |shapes: &[hlo::Shape], what: &str| -> Result<Vec<TensorType>> {
            let named = |i| format!("{what} {i} of `{program}`");
            shapes.iter().enumerate().map(|(i, s)| dtype::from_shape(s, &named(i))).collect()
        };
        let tilings = |types: &[TensorType], noted: &[Option<hlo::OpSharding>]| {
            let typed = types.iter().zip(noted);
            let read = |ty: &TensorType, noted: &hlo::OpSharding| {
                Tiling::from_hlo(noted, ty.dims.len(), devices).ok()
            };
            typed.map(|(ty, noted)| noted.as_ref().and_then(|noted| read(ty, noted))).collect()
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

impl Stored {
    /// Tensors of these types in the orders that `shapes` state.
    pub(crate) fn from_hlo(types: &[TensorType], shapes: &[hlo::Shape]) -> Vec<Arc<Stored>> {
        let order =
            |shape: &hlo::Shape| Some(shape.as_array()?.layout.as_ref()?.minor_to_major.clone());
        let typed = types.iter().zip(shapes);
        typed.map(|(ty, shape)| Arc::new(Stored { ty: ty.clone(), order: order(shape) })).collect()
    }

    /// The two orders, if they are known and differ.
    pub(crate) fn order_conflict<'a>(
        &'a self,
        other: &'a Stored,
    ) -> Option<(&'a [i64], &'a [i64])> {
        let orders = self.order.as_deref().zip(other.order.as_deref());
        orders.filter(|(ours, theirs)| ours != theirs)
    }
}
