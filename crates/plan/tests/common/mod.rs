//! Steps that are planned in tests, by formula and compiled.
#![allow(dead_code, clippy::unwrap_used)]

pub use fullshard_core::Layout;
use fullshard_models::from_json;
pub use fullshard_models::layers::attention::context::ContextMethod;
use fullshard_parallel::{
    FsdpConfig, GatherAhead, MeshSpec, Placement, PlacementOptions, Remat, Strategy, WrapPolicy,
};
use fullshard_plan::{Error, Machine};
use fullshard_step::{BatchShape, StepSpec, dialect, lowering};

/// A step of a model on a machine.
#[derive(Debug, Clone)]
pub struct Case {
    /// The machine.
    pub machine: &'static str,
    /// The model.
    pub shape: Shape,
    /// Sequences per part of the batch.
    pub batch: usize,
    /// Tokens per sequence.
    pub tokens: usize,
    pub remat: Remat,
    pub optimizer: &'static str,
    pub scan: bool,
    pub layout: Layout,
    pub ahead: GatherAhead,
    pub strategy: Strategy,
    /// The mesh; one axis if there is none.
    pub mesh: Option<&'static str>,
    pub sequence_parallel: bool,
    pub context: ContextMethod,
}

/// The sizes of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// Layers, width and heads.
    Gpt2(usize, usize, usize),
    /// Layers, width, heads, key-value heads, inner width and vocabulary.
    Llama(usize, usize, usize, usize, usize, usize),
}

impl Shape {
    /// Its Hugging Face config.
    pub fn config(self, positions: usize) -> String {
        match self {
            Shape::Gpt2(layers, width, heads) => format!(
                r#"{{"model_type": "gpt2", "vocab_size": 50257, "n_positions": {positions},
                "n_embd": {width}, "n_layer": {layers}, "n_head": {heads}, "resid_pdrop": 0,
                "embd_pdrop": 0, "attn_pdrop": 0}}"#
            ),
            Shape::Llama(layers, width, heads, keys, inner, vocabulary) => format!(
                r#"{{"model_type": "llama", "vocab_size": {vocabulary}, "hidden_size": {width},
                "max_position_embeddings": {positions}, "num_hidden_layers": {layers},
                "num_attention_heads": {heads}, "num_key_value_heads": {keys},
                "intermediate_size": {inner}, "tie_word_embeddings": false}}"#
            ),
        }
    }

    fn layer_class(self) -> &'static str {
        match self {
            Shape::Gpt2(..) => "GPT2Block",
            Shape::Llama(..) => "LlamaDecoderLayer",
        }
    }
}

impl Case {
    /// A step of GPT-2 as in the blog post: sharded on dim 0, scanned layers, full remat.
    pub fn new(machine: &'static str, shape: Shape, batch: usize) -> Case {
        Case {
            machine,
            shape,
            batch,
            tokens: 1024,
            remat: Remat::Full,
            optimizer: "adafactor",
            scan: true,
            layout: Layout::Dim(0),
            ahead: GatherAhead::Nothing,
            strategy: Strategy::FullShard,
            mesh: None,
            sequence_parallel: true,
            context: ContextMethod::Gather,
        }
    }

    /// The machine.
    pub fn machine(&self) -> Machine {
        Machine::parse(self.machine).unwrap()
    }

    /// The spec of the step.
    pub fn spec(&self) -> StepSpec {
        self.try_spec().unwrap()
    }

    /// The spec of the step, if its mesh suits the model.
    pub fn try_spec(&self) -> Result<StepSpec, Error> {
        let machine = self.machine();
        let model = from_json(&self.shape.config(self.tokens)).unwrap();
        let mut config = FsdpConfig::from_json(
            r#"{"xla_fsdp_settings": {"compute_dtype": "bfloat16", "shard_param_on_dim_0": true}}"#,
        )
        .unwrap();
        config.wrap = WrapPolicy::Classes(vec![self.shape.layer_class().to_owned()]);
        config.settings.flatten_parameters = self.layout == Layout::Flat;
        let options = PlacementOptions {
            strategy: self.strategy,
            sequence_parallel: self.sequence_parallel,
            context_method: self.context,
            config,
            remat: Some(self.remat.clone()),
            scan_layers: self.scan,
            gather_ahead: self.ahead,
            lowering: lowering(machine.kind),
            dialect: dialect(machine.kind),
            ..PlacementOptions::default()
        };
        let one_axis = format!("fsdp={}", machine.devices);
        let mesh: MeshSpec = self.mesh.unwrap_or(&one_axis).parse().unwrap();
        let mesh = mesh.resolve(machine.devices).unwrap();
        let placement = Placement::on_mesh(&model.tree(), &mesh, &options)
            .map_err(|error| Error::Step(error.into()))?;
        let batch = BatchShape {
            sequences: self.batch * placement.batch_shards(),
            tokens: self.tokens,
            accumulation: 1,
            sync_each_microbatch: true,
        };
        let optimizer = fullshard_optim::from_name(self.optimizer, &Default::default()).unwrap();
        Ok(StepSpec::new(model, placement, optimizer, batch, Some(1.0))?)
    }

    /// Its key in the recording.
    pub fn name(&self) -> String {
        let Case { machine, shape, batch, tokens, remat, optimizer, strategy, .. } = self;
        let layers = if self.scan { "loop" } else { "written out" };
        let layout = if self.layout == Layout::Dim(0) { "rows" } else { "flat" };
        let ahead = match self.ahead {
            GatherAhead::Nothing => String::new(),
            ahead => format!(", gather_ahead {}", ahead.name()),
        };
        let strategy = strategy.name();
        let mesh = self.mesh.map_or(String::new(), |mesh| format!(" on {mesh}"));
        format!(
            "{machine} {shape:?} {batch}x{tokens} {remat:?} {optimizer} {layers} {layout}{ahead} \
             {strategy}{mesh}"
        )
    }
}

const SMALL: Shape = Shape::Gpt2(12, 768, 12);
const MEDIUM: Shape = Shape::Gpt2(24, 1024, 16);
const LARGE: Shape = Shape::Gpt2(36, 1280, 20);
const XL: Shape = Shape::Gpt2(48, 1600, 25);
/// The 2B model of the blog post.
const GPT2_2B: Shape = Shape::Gpt2(18, 3072, 24);
const LLAMA: Shape = Shape::Llama(16, 2048, 32, 8, 8192, 32000);

/// The steps that the quick model was fitted on.
pub fn fitted() -> Vec<Case> {
    let short = |machine, batch| Case { tokens: 256, ..Case::new(machine, SMALL, batch) };
    vec![
        Case::new("v4-8", GPT2_2B, 32),
        Case::new("v4-128", Shape::Gpt2(24, 8192, 64), 8),
        Case { remat: Remat::None, optimizer: "adamw", ..Case::new("v4-8", SMALL, 8) },
        Case { remat: Remat::Dots, ..short("v4-8", 32) },
        short("v5e-4", 32),
        short("v6e-8", 32),
        short("v5p-8", 64),
        Case { optimizer: "adamw", shape: MEDIUM, ..short("v6e-8", 64) },
        Case { remat: Remat::None, ..short("v4-8", 32) },
        Case { remat: Remat::Dots, ..short("v5e-8", 32) },
        Case {
            remat: Remat::None,
            scan: false,
            shape: Shape::Gpt2(2, 2048, 16),
            ..short("v4-8", 16)
        },
    ]
}

/// The steps that it was not fitted on. Most have short sequences, which compile faster.
pub fn held_out() -> Vec<Case> {
    let short = |machine, shape, batch| Case { tokens: 256, ..Case::new(machine, shape, batch) };
    let adamw = |case: Case| Case { optimizer: "adamw", ..case };
    let with = |remat, case: Case| Case { remat, ..case };
    let wide = Shape::Gpt2(2, 2048, 16);
    vec![
        adamw(short("v4-8", MEDIUM, 32)),
        with(Remat::Dots, short("v4-8", MEDIUM, 16)),
        short("v4-8", LARGE, 64),
        with(Remat::Dots, short("v4-8", GPT2_2B, 16)),
        short("v4-8", LLAMA, 32),
        Case { layout: Layout::Flat, ..short("v4-8", MEDIUM, 32) },
        Case { ahead: GatherAhead::Layer, ..short("v4-8", GPT2_2B, 32) },
        Case { scan: false, ..short("v4-8", wide, 32) },
        adamw(Case { strategy: Strategy::ShardGradOp, ..short("v4-8", MEDIUM, 32) }),
        adamw(Case { strategy: Strategy::NoShard, ..short("v4-8", SMALL, 32) }),
        adamw(Case { strategy: Strategy::WeightUpdate, ..short("v4-8", MEDIUM, 32) }),
        adamw(Case {
            strategy: Strategy::HybridShard,
            mesh: Some("data=2,fsdp=2"),
            ..short("v4-8", MEDIUM, 32)
        }),
        adamw(Case {
            strategy: Strategy::HybridShardZero2,
            mesh: Some("data=2,fsdp=4"),
            ..short("v5e-8", MEDIUM, 16)
        }),
        short("v4-32", GPT2_2B, 64),
        adamw(short("v5e-4", MEDIUM, 32)),
        short("v5e-8", XL, 16),
        short("v5e-8", LLAMA, 8),
        with(Remat::Dots, short("v6e-8", GPT2_2B, 16)),
        short("v6e-8", LLAMA, 32),
        adamw(short("v5p-8", XL, 64)),
        with(Remat::Dots, short("v5p-8", LLAMA, 64)),
        with(Remat::None, short("v5p-8", SMALL, 64)),
        Case { tokens: 512, ..Case::new("v4-8", MEDIUM, 16) },
        Case::new("v4-64", Shape::Gpt2(25, 7168, 56), 16),
        Case::new("v4-128", Shape::Gpt2(31, 9216, 72), 8),
        Case::new("v4-256", Shape::Gpt2(35, 12288, 96), 8),
        Case::new("v4-512", Shape::Gpt2(52, 14336, 112), 4),
    ]
}

/// A step on GPUs, with unrolled layers.
fn on(machine: &'static str, shape: Shape, batch: usize, remat: Remat) -> Case {
    Case { remat, optimizer: "adamw", scan: false, ..Case::new(machine, shape, batch) }
}

const NARROW: Shape = Shape::Gpt2(4, 1024, 16);

/// Steps on GPUs that the quick model was fitted on.
pub fn on_gpus() -> Vec<Case> {
    vec![
        on("h200", SMALL, 32, Remat::None),
        on("h200", GPT2_2B, 16, Remat::None),
        on("h200", GPT2_2B, 32, Remat::None),
        on("h200", GPT2_2B, 32, Remat::Dots),
        Case { optimizer: "adafactor", ..on("h200", GPT2_2B, 32, Remat::Full) },
        Case { tokens: 2048, ..on("h200", LLAMA, 8, Remat::None) },
        on("h200", NARROW, 32, Remat::Full),
        on("a100:4", NARROW, 16, Remat::None),
        on("h100:8", Shape::Gpt2(2, 4096, 32), 8, Remat::Full),
        on("h200:2", NARROW, 32, Remat::Dots),
    ]
}

/// Steps that the quick model is known to be wrong about: for B200 the compiler fuses less than
/// for other GPUs, and there are no measurements.
pub fn inaccurate() -> Vec<Case> {
    vec![on("b200:2", NARROW, 32, Remat::Dots)]
}

/// All of them.
pub fn all() -> Vec<Case> {
    [fitted(), held_out(), on_gpus(), inaccurate()].concat()
}
