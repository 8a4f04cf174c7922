//! The collectives of activations in one forward and backward pass: those of tensor and of context
//! parallelism. `tests/parallel.rs` compares them with the step program.
//!
//! A layer has pairs of sliced projections, attention's and the feed-forward layer's. Without
//! sequence parallelism a pair sums its output in the forward pass and the gradient of its input in
//! the backward pass. With it, it all-gathers its input and scatters its output, and the same for
//! their gradients; under rematerialization the input is gathered again. What is next in the layer
//! waits for them. Those of context parallelism overlap with the blocks of attention that need no
//! other device's keys, where the compiler makes collectives asynchronous.

use super::local::{Local, is_sliced, layer_params};
use fullshard_core::CollectiveKind::{
    self, AllGather, AllReduce, CollectivePermute, ReduceScatter,
};
use fullshard_models::layers::attention::context::ContextMethod;
use fullshard_models::layers::checkpoint::OUT_PROJ;
use fullshard_models::layers::dim_names::VOCAB;
use fullshard_models::layers::loss::chunk_size;
use fullshard_parallel::Remat;
use fullshard_step::StepSpec;

/// Equal collectives of a module.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Collective {
    /// The path of the module, with a `*` for the layer.
    pub module: String,
    /// Whether it is in the backward pass.
    pub backward: bool,
    pub kind: CollectiveKind,
    /// The positions of the mesh axes that it runs over.
    pub axes: Vec<usize>,
    /// Number per forward and backward pass.
    pub count: usize,
    /// Bytes of the full tensor; of a permute, those that a device sends.
    pub bytes: usize,
    /// Whether it runs once per step, however many microbatches are accumulated.
    pub per_step: bool,
    /// Whether other compute can run meanwhile.
    pub overlaps: bool,
    /// How many of them run at the same time, on different links.
    pub at_once: usize,
}

/// All collectives of activations.
pub(super) fn collectives(spec: &StepSpec) -> Vec<Collective> {
    let step = Activations::new(spec);
    let mut all = Vec::new();
    if spec.placement.tensor_shards() > 1 {
        all.extend(step.embedding());
        all.extend(step.pairs());
        all.extend(step.loss());
    }
    if spec.placement.context_shards() > 1 {
        all.extend(step.attention());
    }
    all.retain(|collective| collective.count > 0 && collective.bytes > 0);
    all
}

const F32: usize = 4;

struct Activations<'a> {
    spec: &'a StepSpec,
    local: Local,
    /// Bytes of the residual stream, of all tokens.
    residual: usize,
    layers: usize,
    /// Layers that are recomputed in the backward pass.
    recomputed: usize,
    sequence_parallel: bool,
    /// The paths of the modules with sliced projections, attention first.
    pairs: Vec<String>,
}

impl<'a> Activations<'a> {
    fn new(spec: &'a StepSpec) -> Activations<'a> {
        let (placement, model) = (&spec.placement, spec.model.dimensions());
        let local = Local::new(spec);
        let saved = usize::from(placement.saves_last_layer());
        let mut pairs: Vec<String> = Vec::new();
        for param in layer_params(spec).filter(|param| param.dims.len() == 2) {
            let path = param.template.rsplitn(3, '.').last().unwrap_or_default();
            if !pairs.iter().any(|known| known == path) {
                pairs.push(path.to_owned());
            }
        }
        Activations {
            spec,
            local,
            residual: local.tokens * model.hidden * placement.comm.compute.size(),
            layers: model.layers,
            recomputed: match placement.remat {
                Remat::None => 0,
                _ => model.layers.saturating_sub(saved),
            },
            sequence_parallel: placement.tensor.iter().any(|tensor| tensor.sequence_parallel),
            pairs,
        }
    }

    /// A collective over the tensor axis.
    fn over_tensor(
        &self,
        module: &str,
        backward: bool,
        kind: CollectiveKind,
        count: usize,
        bytes: usize,
    ) -> Collective {
        let axes = self.spec.placement.tensor.iter().flat_map(|tensor| tensor.axes.clone());
        let (module, axes) = (module.to_owned(), axes.collect());
        Collective {
            module,
            backward,
            kind,
            axes,
            count,
            bytes,
            per_step: false,
            overlaps: false,
            at_once: 1,
        }
    }

    /// The sum of the rows that each device has looked up. With sequence parallelism the gradients
    /// of all tokens are summed too.
    fn embedding(&self) -> Vec<Collective> {
        if !is_sliced(&self.spec.placement, &VOCAB) {
            return Vec::new();
        }
        let params = &self.spec.placement.parameters;
        let table = params.iter().find(|it| it.class == "Embedding" && it.slice.is_some());
        let path = table.map_or("", |it| it.template.rsplit_once('.').map_or("", |(path, _)| path));
        let sum =
            |backward, count| self.over_tensor(path, backward, AllReduce, count, self.residual);
        vec![sum(false, 1), sum(true, usize::from(self.sequence_parallel))]
    }

    /// Those of the pairs of sliced projections of all layers.
    fn pairs(&self) -> Vec<Collective> {
        let saved = self.spec.placement.remat.saved();
        let saves_output = saved.iter().any(|saved| saved.name == OUT_PROJ);
        let sliced = |path: &&String| {
            let below = format!("{path}.");
            layer_params(self.spec).any(|it| it.slice.is_some() && it.template.starts_with(&below))
        };
        let mut all = Vec::new();
        for (i, path) in self.pairs.iter().enumerate().filter(|(_, path)| sliced(path)) {
            let of = |backward, kind, count| {
                self.over_tensor(path, backward, kind, count, self.residual)
            };
            // The backward pass does not use the output of a layer.
            let is_last = i + 1 == self.pairs.len();
            let output_again = if is_last || saves_output { 0 } else { self.recomputed };
            let layers = self.layers;
            all.extend(match self.sequence_parallel {
                true => vec![
                    of(false, AllGather, layers),
                    of(false, ReduceScatter, layers),
                    of(true, AllGather, layers + self.recomputed),
                    of(true, ReduceScatter, layers + output_again),
                ],
                false => {
                    vec![of(false, AllReduce, layers), of(true, AllReduce, layers + output_again)]
                }
            });
        }
        all
    }

    /// The input of the head, and of each token the largest logit, the sum of exponentials and the
    /// logit of the label.
    fn loss(&self) -> Vec<Collective> {
        if !is_sliced(&self.spec.placement, &VOCAB) {
            return Vec::new();
        }
        let Local { tokens, vocabulary, .. } = self.local;
        let bytes = self.spec.placement.options.lowering.chunk_bytes;
        let chunk = chunk_size(tokens, vocabulary, bytes).clamp(1, tokens.max(1));
        let chunks = tokens.div_ceil(chunk);
        let of = |backward, kind, count, bytes| {
            self.over_tensor("lm_head", backward, kind, count, bytes)
        };
        let mut all = vec![
            of(false, AllReduce, chunks, chunk * F32),
            of(false, AllReduce, chunks, 2 * chunk * F32),
        ];
        match self.sequence_parallel {
            true => all.extend([
                of(false, AllGather, 1, self.residual),
                of(true, ReduceScatter, 1, self.residual),
            ]),
            false => all.push(of(true, AllReduce, 1, self.residual)),
        }
        all
    }

    /// The keys and values of other devices, and in the backward pass their gradients.
    fn attention(&self) -> Vec<Collective> {
        let placement = &self.spec.placement;
        let devices = placement.context_shards();
        let size = placement.comm.compute.size();
        let own = self.local.tokens * self.local.keys_and_values();
        let again = if self.spec.recomputed().attention { self.recomputed } else { 0 };
        let module = self.pairs.first().cloned().unwrap_or_default();
        let of = |backward, kind, count, bytes| Collective {
            module: module.clone(),
            backward,
            kind,
            axes: placement.context_axes.clone(),
            count,
            bytes,
            per_step: false,
            overlaps: true,
            at_once: 1,
        };
        let layers = self.layers;
        if placement.options.context_method == ContextMethod::Gather {
            let all = devices * own * size;
            return vec![
                of(false, AllGather, layers, all),
                of(true, AllGather, layers + again, all),
                of(true, ReduceScatter, layers, all),
            ];
        }
        // The gradients of two devices' keys and values go one way; of more, once around.
        let (others, sums) = (devices - 1, if devices == 2 { 1 } else { devices });
        vec![
            of(false, CollectivePermute, layers * others, own * size),
            of(true, CollectivePermute, (layers + again) * others, own * size),
            of(true, CollectivePermute, layers * sums, own * F32),
        ]
    }
}
