//! What a step sends between devices, as the placement has it: to be printed before anything is
//! compiled, and held against what the compiler made of it.

use crate::layout::Stored;
use crate::placement::{PlacedUnit, Placement};
use fullshard_core::Layout;
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
    /// The bytes of the whole tensor, padding included, each time.
    pub bytes: usize,
}

impl Placement {
    /// The exchanges of parameters and gradients in one forward and backward pass.
    ///
    /// Parameters that the way back does not need, such as biases, are not gathered again unless
    /// they come packed with others; the count is of all that may be. A loop that gathers ahead
    /// gathers in both directions whatever is kept, and once more in each: the first layer before
    /// the loop, and in its last round one that nobody uses.
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
        let mut exchanges = Vec::new();
        for parameters in [&trained, &frozen] {
            for bucket in self.wire.gathers(parameters) {
                let kind = ExchangeKind::Gather;
                exchanges.push(self.exchange(unit, kind, bucket.iter().map(|&i| parameters[i])));
            }
        }
        let layers: Vec<usize> =
            trained.iter().map(|stored| layers_at_once(unit, stored)).collect();
        for bucket in self.wire.scatters(&trained, &layers) {
            let kind = ExchangeKind::ReduceScatter;
            exchanges.push(self.exchange(unit, kind, bucket.iter().map(|&i| trained[i])));
        }
        let whole = trained.iter().copied().filter(|stored| stored.layout == Layout::Replicated);
        let sums = whole.map(|stored| self.exchange(unit, ExchangeKind::AllReduce, [stored]));
        exchanges.extend(sums);
        exchanges
    }

    /// The exchange of some parameters of a unit, or of their gradients, together.
    fn exchange<'a>(
        &self,
        unit: &PlacedUnit,
        kind: ExchangeKind,
        parameters: impl IntoIterator<Item = &'a Stored>,
    ) -> Exchange {
        let (dtype, count) = match kind {
            ExchangeKind::Gather => (self.wire.compute, self.gathers_of(unit)),
            ExchangeKind::ReduceScatter | ExchangeKind::AllReduce => (self.wire.reduce, unit.count),
        };
        let elements = parameters.into_iter().map(|stored| {
            let layers = layers_at_once(unit, stored);
            layers * stored.padded_elements()
        });
        let bytes = elements.sum::<usize>() * dtype.size();
        Exchange { unit: unit.path.clone(), kind, dtype, count, bytes }
    }

    /// How often something of a unit is gathered.
    fn gathers_of(&self, unit: &PlacedUnit) -> usize {
        let looped = self.stacks.count(&unit.path).is_some();
        match (looped && self.gathers_ahead(), unit.reshard) {
            (true, _) => 2 * (unit.count + 1),
            (false, true) => 2 * unit.count,
            (false, false) => unit.count,
        }
    }
}

/// The layers of a stored parameter that its unit exchanges at once: one if the unit is inside
/// the loop over them, all if it is around that loop.
fn layers_at_once(unit: &PlacedUnit, stored: &Stored) -> usize {
    if unit.path.contains('*') { 1 } else { stored.stack.unwrap_or(1) }
}
