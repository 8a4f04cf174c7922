//! What a step sends between devices, as the placement has it: to be printed before anything is
//! compiled, and held against what the compiler made of it.

use crate::layout::Stored;
use crate::placement::{PlacedUnit, Placement};
use fullshard_graph::DType;

/// A kind of exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Parts are put together.
    Gather,
    /// Gradients are summed, and each device keeps its part.
    ReduceScatter,
    /// Gradients are summed, and each device has them whole.
    AllReduce,
}

/// An exchange of a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// The path of the unit.
    pub unit: String,
    /// What is done.
    pub kind: ExchangeKind,
    /// The type on the wire.
    pub dtype: DType,
    /// How often in one forward and backward pass.
    pub count: usize,
    /// The bytes of the whole tensor, each time.
    pub bytes: usize,
}

impl Placement {
    /// The exchanges of parameters and gradients in one forward and backward pass.
    ///
    /// Parameters that the way back does not need, such as biases, are not gathered again unless
    /// they come packed with others; the count is of all that may be.
    pub fn exchanges(&self) -> Vec<Exchange> {
        if self.devices() == 1 {
            return Vec::new();
        }
        self.units.iter().flat_map(|unit| self.exchanges_of(unit)).collect()
    }

    fn exchanges_of(&self, unit: &PlacedUnit) -> Vec<Exchange> {
        let owned = unit.parameters.iter().map(|&i| &self.parameters[i]);
        let (frozen, trained): (Vec<&Stored>, Vec<&Stored>) =
            owned.partition(|stored| stored.frozen);
        let exchange = |kind, dtype: DType, parameters: &[&Stored], bucket: &[usize], count| {
            let elements = bucket.iter().map(|&i| {
                let stored = parameters[i];
                let layers = if unit.count > 1 { stored.stack.unwrap_or(1) } else { 1 };
                stored.part_elements() * stored.parts / layers
            });
            let bytes = elements.sum::<usize>() * dtype.size();
            Exchange { unit: unit.path.clone(), kind, dtype, count, bytes }
        };
        let passes = if unit.reshard { 2 } else { 1 };
        let mut exchanges = Vec::new();
        for parameters in [&trained, &frozen] {
            for bucket in self.wire.gathers(parameters) {
                let count = unit.count * passes;
                let kind = ExchangeKind::Gather;
                exchanges.push(exchange(kind, self.wire.compute, parameters, &bucket, count));
            }
        }
        for bucket in self.wire.scatters(&trained) {
            let kind = ExchangeKind::ReduceScatter;
            exchanges.push(exchange(kind, self.wire.reduce, &trained, &bucket, unit.count));
        }
        let whole = (0..trained.len()).filter(|&i| trained[i].layout == crate::Layout::Whole);
        for i in whole {
            let elements = trained[i].elements() / if unit.count > 1 { unit.count } else { 1 };
            exchanges.push(Exchange {
                unit: unit.path.clone(),
                kind: ExchangeKind::AllReduce,
                dtype: self.wire.reduce,
                count: unit.count,
                bytes: elements * self.wire.reduce.size(),
            });
        }
        exchanges
    }
}
