//! Errors of a placement.

use crate::config::FsdpConfigError;
use crate::wrap::WrapError;

/// Why a model cannot be placed as requested.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is inconsistent.
    #[error(transparent)]
    Config(#[from] FsdpConfigError),
    /// Units or frozen parameters that the model does not have.
    #[error(transparent)]
    Wrap(#[from] WrapError),
    /// A parameter is frozen in some of the scanned layers and trained in others.
    #[error(
        "`{name}` is frozen in some layers and trained in others, which scanned layers do not \
         support: freeze it in all of them (`*` for the layer), or unroll the layers \
         (--scan_layers false)"
    )]
    PartiallyFrozen {
        /// The parameter, with a `*` for the layer.
        name: String,
    },
    /// There is nothing to all-gather one layer ahead.
    #[error("--gather_ahead cannot be used: {reason}")]
    NoGatherAhead {
        /// Why.
        reason: &'static str,
    },
    /// A rule for an axis that the mesh does not have.
    #[error("rule `{name}` of {rules}: {source}; name axes of --mesh, or \"*\" for all")]
    RuleAxis {
        /// The rules.
        rules: String,
        /// The rule.
        name: String,
        /// The axis.
        source: fullshard_graph::MeshError,
    },
    /// A rule for a dimension that the model does not have.
    #[error("rule `{name}` of {rules} names no dimension{hint}; the names are {known}")]
    UnknownDim {
        /// The rules.
        rules: String,
        /// The rule.
        name: String,
        /// A name that is near.
        hint: String,
        /// The names.
        known: String,
    },
    /// An axis along which all devices would compute the same.
    #[error(
        "mesh axis `{axis}` does not shard the batch under {rules}, so its devices would all \
         compute the same: add it to the rule `batch`, or leave it out of the mesh{hint}"
    )]
    IdleAxis {
        /// The rules.
        rules: String,
        /// The axis.
        axis: String,
        /// What else the axis could shard.
        hint: &'static str,
    },
    /// A dimension that tensor parallelism cannot slice.
    #[error(
        "mesh axis `tensor` has {devices} devices, which do not divide {what}: sizes that divide \
         everything {rules} slices are {sizes}"
    )]
    IndivisibleSlice {
        /// The rules.
        rules: String,
        /// What is not divided: heads or elements of a parameter's dimension.
        what: String,
        /// The devices along the axis.
        devices: usize,
        /// The sizes of the axis that would do.
        sizes: String,
    },
    /// A mesh axis that cannot be automatic.
    #[error("mesh axis `{axis}` cannot be automatic (--automatic_axes): {reason}; {fix}")]
    AutomaticAxis {
        /// The axis.
        axis: String,
        /// Why.
        reason: &'static str,
        /// What to do instead.
        fix: &'static str,
    },
    /// Query heads that are sliced without the key and value heads they attend to, or the reverse.
    #[error(
        "{rules} slices only one of `heads` and `kv_heads` over `tensor`, but heads of queries stay \
         with those of their keys and values: add a rule for the other"
    )]
    HeadsApart {
        /// The rules.
        rules: String,
    },
    /// A rule for the tensor axis together with others.
    #[error(
        "rule `{name}` of {rules} has `tensor` beside other axes: write a rule for `tensor` alone, \
         and shard the slices by another rule, such as [\"flat\", \"fsdp\"]"
    )]
    MixedAxes {
        /// The rules.
        rules: String,
        /// The rule.
        name: String,
    },
    /// A rule for activations with an axis that has another meaning.
    #[error("rule `{name}` of {rules} has axis `{axis}`, but only `{expected}` shards `{name}`")]
    ActivationAxis {
        /// The rules.
        rules: String,
        /// The rule.
        name: String,
        /// The axis.
        axis: String,
        /// The axis that it may have.
        expected: &'static str,
    },
    /// Sequence parallelism without a head that is sliced.
    #[error(
        "rule `norm_sequence` of {rules} shards tokens over `tensor`, and the loss then needs a \
         sliced head: add a rule [\"vocab\", \"tensor\"], or leave `norm_sequence` out"
    )]
    SequenceWithoutVocab {
        /// The rules.
        rules: String,
    },
    /// A dimension that is not a multiple of its shards.
    #[error(
        "rule `{dim_name}` of {rules}: dim {dim} of `{parameter}` is {size}, which is not a multiple \
         of {shards} devices: shard it over fewer, or name another dimension (`flat` always works)"
    )]
    IndivisibleDim {
        /// The rules.
        rules: String,
        /// The parameter.
        parameter: String,
        /// The dimension.
        dim: usize,
        /// Its name, which is the rule.
        dim_name: String,
        /// Its size.
        size: usize,
        /// The number of devices.
        shards: usize,
    },
    /// An error of the mesh or of a sharding over it.
    #[error(transparent)]
    Mesh(#[from] fullshard_graph::MeshError),
    /// A program could not be traced.
    #[error(transparent)]
    Trace(#[from] fullshard_graph::Error),
}
