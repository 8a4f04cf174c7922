//! Context parallelism of layers: a device has some of the tokens of every sequence.
//!
//! What depends on positions or on other tokens asks for them here: position tables, rotary angles,
//! attention, and the labels of tokens. Everything else computes tokens one by one.

use crate::layers::attention::context::{ContextMethod, Zigzag};
use fullshard_graph::{Group, Result, Tensor};
use std::cell::Cell;

/// The devices that share sequences, and how.
#[derive(Debug, Clone)]
pub struct ContextAxis {
    /// The devices that share a sequence.
    pub group: Group,
    /// How attention gets the keys and values of other devices.
    pub method: ContextMethod,
    /// The devices with their own sequences.
    pub samples: Group,
    /// The length of the sequences that are traced.
    length: Cell<usize>,
}

impl ContextAxis {
    /// Devices that share sequences, and those with their own.
    pub fn new(group: Group, method: ContextMethod, samples: Group) -> ContextAxis {
        ContextAxis { group, method, samples, length: Cell::default() }
    }

    /// The length of the sequences that were sharded last.
    pub fn length(&self) -> usize {
        self.length.get()
    }

    /// The length of sequences of which this device has `local` tokens.
    pub fn sequence(&self, local: usize) -> usize {
        local * self.group.size()
    }

    /// The positions of this device's `local` tokens in their sequence, `i32`.
    pub fn positions(&self, local: usize) -> Result<Tensor> {
        Zigzag::new(&self.group, self.sequence(local))?.positions()
    }

    /// This device's tokens of a tensor whose dimension `dim` is the full sequence.
    pub fn own_tokens(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let zigzag = Zigzag::new(&self.group, x.dims()[dim])?;
        self.length.set(zigzag.sequence());
        zigzag.shard(x, dim)
    }
}
