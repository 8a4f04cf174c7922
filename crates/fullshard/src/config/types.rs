//! The types of fields that have their own words in flags and files.

use super::value::{FlagValue, Takes, choices, parsed};
use fullshard_core::{MeshSpec, Platform};
use fullshard_parallel::{GatherAhead, Remat, Strategy};
use serde_json::{Map, Value};
use std::path::PathBuf;

choices! {
    /// When an action runs during training.
    When {
        /// Never.
        No = "no",
        /// Every N steps.
        Steps = "steps",
        /// At the end of each epoch.
        Epoch = "epoch",
    }
}

choices! {
    /// When a checkpoint is saved.
    SaveWhen {
        /// Never.
        No = "no",
        /// Every N steps.
        Steps = "steps",
        /// At the end of each epoch.
        Epoch = "epoch",
        /// After each evaluation that is the best so far.
        Best = "best",
    }
}

choices! {
    /// What is done about a loss spike.
    OnSpike {
        /// Nothing.
        Off = "off",
        /// Its update is left out.
        Skip = "skip",
        /// The run goes back to the last checkpoint.
        Rollback = "rollback",
    }
}

choices! {
    /// How collectives over several mesh axes run.
    CollectiveChoice {
        /// As the network model predicts is fastest.
        Auto = "auto",
        /// All axes at once.
        Flat = "flat",
        /// One axis after another.
        Axes = "axes",
        /// The same in streams, each starting with another axis.
        Rotated = "rotated",
        /// One axis after another, from the nearest devices to the farthest.
        Hierarchical = "hierarchical",
        /// Large reductions around rings of permutes, which overlap with computation.
        Ring = "ring",
    }
}

choices! {
    /// How attention is computed.
    AttentionChoice {
        /// In the best form of the platform.
        Auto = "auto",
        /// By its definition.
        Eager = "eager",
    }
}

choices! {
    /// How keys and values reach the devices that share a sequence.
    ContextChoice {
        /// All at once.
        Gather = "gather",
        /// Around a ring.
        Ring = "ring",
    }
}

choices! {
    /// The dtype of saved weights.
    SaveDtype {
        /// As trained.
        Float32 = "float32",
        /// Rounded to bfloat16.
        Bfloat16 = "bfloat16",
        /// Rounded to half precision.
        Float16 = "float16",
    }
}

choices! {
    /// Whether identical layers are scanned (one body in a loop) or unrolled.
    Scan {
        /// By platform: always on CPU, above 8 layers on TPU, never on GPU.
        Auto = "auto",
        /// Scanned.
        True = "true",
        /// Unrolled.
        False = "false",
    }
}

choices! {
    /// What is all-gathered for scanned layers before they need it.
    AheadChoice {
        /// By chip: vectors on TPU v4, else nothing.
        Auto = "auto",
        /// Nothing.
        False = "false",
        /// Biases and weights of norms, for all layers at once before the scan.
        Vectors = "vectors",
        /// The next layer, while one is computed.
        True = "true",
    }
}

choices! {
    /// The compute dtype.
    Compute {
        /// Single precision.
        Float32 = "float32",
        /// bfloat16.
        Bfloat16 = "bfloat16",
        /// Half precision, without loss scaling.
        Float16 = "float16",
        /// bfloat16, with layer matmuls in FP8.
        Float8 = "float8_e4m3fn",
    }
}

impl AheadChoice {
    /// What is gathered ahead, unless the chip decides.
    pub(crate) fn given(self) -> Option<GatherAhead> {
        match self {
            AheadChoice::Auto => None,
            AheadChoice::False => Some(GatherAhead::Nothing),
            AheadChoice::Vectors => Some(GatherAhead::Vectors),
            AheadChoice::True => Some(GatherAhead::Layer),
        }
    }
}

impl From<GatherAhead> for AheadChoice {
    fn from(ahead: GatherAhead) -> AheadChoice {
        match ahead {
            GatherAhead::Nothing => AheadChoice::False,
            GatherAhead::Vectors => AheadChoice::Vectors,
            GatherAhead::Layer => AheadChoice::True,
        }
    }
}

impl CollectiveChoice {
    /// Whether collectives are to run along one axis after another.
    pub(crate) fn is_staged(self) -> bool {
        !matches!(self, CollectiveChoice::Auto | CollectiveChoice::Flat)
    }
}

/// Case-insensitive: `PJRT_DEVICE` is often upper case.
impl FlagValue for Platform {
    fn read(words: &[String]) -> Result<Platform, String> {
        String::read(words)?
            .to_ascii_lowercase()
            .parse::<Platform>()
            .map_err(|error| error.to_string())
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.name().to_owned()])
    }
}

/// A number of bytes, such as `5GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "KB")];
        match units.iter().find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl std::str::FromStr for Size {
    type Err = fullshard_checkpoint::Error;

    fn from_str(text: &str) -> Result<Size, fullshard_checkpoint::Error> {
        fullshard_checkpoint::parse_size(text).map(Size)
    }
}

/// The checkpoint to resume from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeFrom {
    /// The latest one of the output folder.
    Latest,
    /// The same, if there is one.
    Auto,
    /// A folder.
    Folder(PathBuf),
}

impl std::fmt::Display for ResumeFrom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ResumeFrom::Latest => write!(f, "latest"),
            ResumeFrom::Auto => write!(f, "auto"),
            ResumeFrom::Folder(folder) => write!(f, "{}", folder.display()),
        }
    }
}

impl std::str::FromStr for ResumeFrom {
    type Err = std::convert::Infallible;

    fn from_str(word: &str) -> Result<ResumeFrom, std::convert::Infallible> {
        Ok(match word {
            "latest" | "last" => ResumeFrom::Latest,
            "auto" => ResumeFrom::Auto,
            folder => ResumeFrom::Folder(folder.into()),
        })
    }
}

/// `None` for a word such as `false`, as in Hugging Face's scripts.
impl FlagValue for Option<ResumeFrom> {
    const TAKES: Takes = Takes::Switch;

    fn read(words: &[String]) -> Result<Option<ResumeFrom>, String> {
        match bool::read(words) {
            Ok(latest) => Ok(latest.then_some(ResumeFrom::Latest)),
            Err(_) => parsed(words).map(Some),
        }
    }

    fn words(&self) -> Option<Vec<String>> {
        self.as_ref().map(|from| vec![from.to_string()])
    }
}

/// Types that are text in files and flags.
macro_rules! as_text {
    ($($ty:ty),*) => {$(
        impl serde::Serialize for $ty {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $ty {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$ty, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
as_text!(Size, ResumeFrom);

impl FlagValue for MeshSpec {
    fn read(words: &[String]) -> Result<MeshSpec, String> {
        parsed(words)
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.to_string()])
    }
}

impl FlagValue for Size {
    fn read(words: &[String]) -> Result<Size, String> {
        parsed(words)
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.to_string()])
    }
}

/// Module classes; none for the root alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct WrapClasses(pub Vec<String>);

impl WrapClasses {
    /// The given classes.
    pub fn new<S: Into<String>>(classes: impl IntoIterator<Item = S>) -> WrapClasses {
        WrapClasses(classes.into_iter().map(Into::into).collect())
    }
}

impl FlagValue for WrapClasses {
    fn read(words: &[String]) -> Result<WrapClasses, String> {
        let classes = String::read(words)?;
        let classes = classes.split(',').map(str::trim).filter(|class| !class.is_empty());
        Ok(WrapClasses::new(classes))
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.0.join(",")])
    }
}

/// A bare `--fsdp` means `full_shard`.
impl FlagValue for Strategy {
    const TAKES: Takes = Takes::Switch;

    fn read(words: &[String]) -> Result<Strategy, String> {
        if words.is_empty() { Ok(Strategy::FullShard) } else { parsed(words) }
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.name().to_owned()])
    }
}

impl FlagValue for Remat {
    fn read(words: &[String]) -> Result<Remat, String> {
        parsed(words)
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.to_string()])
    }
}

/// A JSON object.
impl FlagValue for Map<String, Value> {
    fn read(words: &[String]) -> Result<Map<String, Value>, String> {
        let text = String::read(words)?;
        serde_json::from_str(&text).map_err(|error| format!("it is not a JSON object: {error}"))
    }

    fn words(&self) -> Option<Vec<String>> {
        (!self.is_empty()).then(|| vec![Value::Object(self.clone()).to_string()])
    }
}
