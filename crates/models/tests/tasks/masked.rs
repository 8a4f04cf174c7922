//! A masked language model: predicts masked tokens from those around them.

use super::{initial, losses};
use crate::common::eval;
use fullshard_graph::{DType, Result, Tensor};
use fullshard_models::layers::attention::{
    Heads, Mask, Pattern, Scores, attention, merge_heads, split_heads,
};
use fullshard_models::layers::{Linear, loss};
use fullshard_models::{
    AnyModel, Dimensions, FromTensors, IGNORED, InputSpec, Loss, Model, Plain, Scope, Task, boxed,
    take_fields,
};
use fullshard_pjrt::HostTensor;

/// Predicts masked tokens. Labels are the tokens at masked positions, and ignored elsewhere.
#[derive(Debug, Clone, Copy)]
struct MaskedLm {
    vocabulary: usize,
}

/// Sequences of different lengths.
struct PaddedTokens {
    tokens: Tensor,
    /// Which tokens are not padding.
    attention_mask: Tensor,
}

impl FromTensors for PaddedTokens {
    fn from_tensors(tensors: &[Tensor]) -> Result<PaddedTokens> {
        let [tokens, attention_mask] = take_fields(tensors)?;
        Ok(PaddedTokens { tokens, attention_mask })
    }
}

impl Task for MaskedLm {
    type Inputs = PaddedTokens;
    type Labels = Tensor;

    fn name(&self) -> &'static str {
        "masked-lm"
    }

    fn inputs(&self, sequence: usize) -> Vec<InputSpec> {
        ["input_ids", "attention_mask"]
            .map(|name| InputSpec::new(name, DType::I32, &[sequence]))
            .into()
    }

    fn labels(&self, sequence: usize) -> Vec<InputSpec> {
        vec![InputSpec::new("labels", DType::I32, &[sequence])]
    }

    fn label_count(&self, labels: &Tensor) -> Result<Tensor> {
        loss::label_mask(labels, self.vocabulary)?.convert(DType::F32)?.sum_all()
    }

    fn loss(&self, logits: &Tensor, labels: &Tensor) -> Result<Loss> {
        loss::cross_entropy(logits, labels)
    }
}

#[derive(Debug)]
struct Encoder {
    vocabulary: usize,
    positions: usize,
    width: usize,
    heads: usize,
    depth: usize,
}

impl Model<MaskedLm> for Encoder {
    fn class(&self) -> &'static str {
        "EncoderForMaskedLM"
    }

    fn task(&self) -> MaskedLm {
        MaskedLm { vocabulary: self.vocabulary }
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions {
            layers: self.depth,
            hidden: self.width,
            heads: self.heads,
            head: self.width / self.heads,
            inner: 4 * self.width,
            vocabulary: self.vocabulary,
            positions: self.positions,
        }
    }

    fn forward(&self, nn: &Scope<'_>, inputs: &PaddedTokens) -> Result<Tensor> {
        let sequence = inputs.tokens.dims()[1];
        let x = nn.module("embeddings", "Embeddings", |nn| {
            let tokens = nn.embedding("word", &inputs.tokens, self.vocabulary, self.width)?;
            let x = (tokens + nn.positions("position", sequence, self.positions, self.width)?)?;
            nn.layer_norm("norm", &x)
        })?;
        let x = nn.layers("layer", "EncoderLayer", self.depth, &x, |nn, x| {
            let attn_out = nn.module("attention", "SelfAttention", |nn| {
                self.attention(nn, x, &inputs.attention_mask)
            })?;
            let x = nn.layer_norm("norm_1", &(x + attn_out)?)?;
            let inner = nn.linear("up", &x, 4 * self.width)?.gelu()?;
            nn.layer_norm("norm_2", &(&x + nn.linear("down", &inner, self.width)?)?)
        })?;
        let head = Linear::new(self.vocabulary).bias(false).tied(Some("embeddings.word.weight"));
        head.apply(nn, "decoder", &x)
    }
}

impl Encoder {
    fn attention(&self, nn: &Scope<'_>, x: &Tensor, is_key: &Tensor) -> Result<Tensor> {
        let head = |name| split_heads(&nn.linear(name, x, self.width)?, x.dims()[1], self.width / self.heads);
        let heads = Heads { query: head("query")?, key: head("key")?, value: head("value")? };
        let scale = ((self.width / self.heads) as f64).sqrt().recip();
        let mask = Mask::full().without_padding(is_key)?;
        let scores = Scores::scaled(mask, nn.compute_dtype(), scale)?;
        nn.linear("out", &merge_heads(&attention(nn, &heads, &scores)?, x)?, self.width)
    }
}

const VOCABULARY: usize = 19;
const SEQUENCE: usize = 12;
/// The mask token.
const MASK_TOKEN: i32 = 1;

fn model() -> Box<dyn AnyModel> {
    let (positions, width) = (16, 16);
    boxed(Encoder { vocabulary: VOCABULARY, positions, width, heads: 2, depth: 2 }).unwrap()
}

/// Tokens, attention mask and labels of four sequences.
fn batch() -> Vec<HostTensor> {
    let (mut tokens, mut keys, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..4 {
        for place in 0..SEQUENCE {
            let token = 2 + (3 * place + 5 * row) as i32 % (VOCABULARY as i32 - 2);
            let (is_key, is_masked) = (place < SEQUENCE - 2 * row, place % 4 == 1);
            tokens.push(if !is_key {
                0
            } else if is_masked {
                MASK_TOKEN
            } else {
                token
            });
            keys.push(i32::from(is_key));
            labels.push(if is_key && is_masked { token } else { IGNORED });
        }
    }
    [tokens, keys, labels]
        .map(|values| HostTensor::from_values(&[4, SEQUENCE], &values).unwrap())
        .into()
}

#[test]
fn masked_lm_is_described() {
    let model = model();
    assert_eq!((model.class(), model.task()), ("EncoderForMaskedLM", "masked-lm"));
    let names: Vec<&str> = model.batch(SEQUENCE).iter().map(|spec| spec.name).collect();
    assert_eq!(names, ["input_ids", "attention_mask", "labels"]);
    let form = model.attention_form();
    assert_eq!((form.pattern, form.padding), (Pattern::Full, true));
    let tree = model.tree();
    let names: Vec<String> = tree.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[..2], ["embeddings.word.weight", "embeddings.position.weight"]);
    assert_eq!(names[4], "layer.0.attention.query.weight");
    let (name, decoder) = tree.named_parameters().pop().unwrap();
    assert_eq!((name.as_str(), decoder.tied_to.is_some()), ("decoder.weight", true));
}

#[test]
fn masked_lm_learns() {
    let losses = losses(&*model(), batch(), 0.5, 20);
    println!("{losses:?}");
    assert!((losses[0] - (VOCABULARY as f64).ln()).abs() < 0.3, "{}", losses[0]);
    assert!(losses[19] < 0.5 * losses[0], "{losses:?}");
}

#[test]
fn padding_is_not_attended_to() {
    let model = model();
    let logits = |padding: i32| {
        let mut batch = batch();
        let mut tokens: Vec<f64> = batch[0].to_f64().unwrap();
        let last = 4 * SEQUENCE - 1;
        tokens[last] = padding.into();
        let tokens: Vec<i32> = tokens.into_iter().map(|token| token as i32).collect();
        batch[0] = HostTensor::from_values(&[4, SEQUENCE], &tokens).unwrap();
        let mut inputs = initial(&*model);
        let count = inputs.len();
        inputs.extend(batch.drain(..2));
        let found = eval(&inputs, |inputs| {
            let plain = Plain::new(&model.tree(), &inputs[..count], DType::F32)?;
            Scope::root(&plain, |nn| Ok(vec![model.logits(nn, &inputs[count..])?]))
        });
        let mut found = found[0].to_f64().unwrap();
        found.truncate(last * VOCABULARY);
        found
    };
    assert_eq!(logits(0), logits(7));
}
