//! What layers save for the backward pass: the values of `--remat`.
//!
//! A policy is a preset or a list of the names that models give to activations
//! (`fullshard_models::layers::checkpoint`). What is not saved is recomputed.

use fullshard_graph::Policy;
use fullshard_models::layers::checkpoint::{
    self, ATTN_OUT, MLP_GATE, MLP_IN, NORM_STATS, OUT_PROJ, QKV,
};
use fullshard_models::nearest;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a layer saves for the backward pass besides its input; the rest is recomputed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Remat {
    /// Everything: nothing is recomputed.
    #[default]
    None,
    /// All that has a name: the results of its matmuls and of attention.
    Dots,
    /// The results of its matmuls with weights. Attention is recomputed.
    Minimal,
    /// Those outside of the MLP.
    SaveDotExceptMlp,
    /// Queries, keys and values.
    SaveQkv,
    /// The output of attention and its projection.
    SaveOut,
    /// Nothing.
    Full,
    /// What [`Remat::Minimal`] saves, in host memory.
    MinimalOffload,
    /// What [`Remat::SaveQkv`] saves, in host memory.
    QkvOffload,
    /// Just these, each of which the model must have.
    Names(Vec<SavedName>),
}

/// A named activation that is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SavedName {
    /// Its name.
    pub name: &'static str,
    /// Whether it is moved to host memory until the backward pass uses it.
    pub offload: bool,
}

/// A text that is not a remat policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RematError {
    /// Neither a policy nor a name.
    #[error(
        "`{given}` is neither a remat policy nor the name of an activation{}; the policies are {}; \
         the names, of which a list has some, each with `{OFFLOAD}` before it to move it to host \
         memory, are {}",
        did_you_mean(*nearest), presets(), checkpoint::ALL.join(", ")
    )]
    Unknown {
        /// The text.
        given: String,
        /// What it may be meant to be.
        nearest: Option<&'static str>,
    },
    /// A name that is in a list twice.
    #[error("`{0}` is in the list of a remat policy twice: leave one out")]
    Twice(&'static str),
}

/// Before the names of a list that are moved to host memory.
const OFFLOAD: &str = "offload:";

/// The presets with their names, from the most memory to the least, then those that offload.
const PRESETS: [(Remat, &str); 9] = [
    (Remat::None, "none"),
    (Remat::Dots, "dots"),
    (Remat::Minimal, "minimal"),
    (Remat::SaveDotExceptMlp, "save_dot_except_mlp"),
    (Remat::SaveQkv, "save_qkv"),
    (Remat::SaveOut, "save_out"),
    (Remat::Full, "full"),
    (Remat::MinimalOffload, "minimal_offload"),
    (Remat::QkvOffload, "qkv_offload"),
];

impl Remat {
    /// The policies that have a name of their own.
    pub fn presets() -> impl Iterator<Item = Remat> {
        PRESETS.into_iter().map(|(preset, _)| preset)
    }

    /// The policy that saves just these activations, on the device.
    pub fn saving(names: &[&'static str]) -> Remat {
        let saved = |&name| SavedName { name, offload: false };
        Remat::Names(names.iter().map(saved).collect())
    }

    /// The activations it saves; all for [`Remat::None`], which also saves those without a name.
    pub fn saved(&self) -> Vec<SavedName> {
        let of = |names: &[&'static str], offload: bool| {
            names.iter().map(|&name| SavedName { name, offload }).collect()
        };
        let minimal = [QKV, OUT_PROJ, MLP_IN, MLP_GATE];
        match self {
            Remat::None | Remat::Dots => of(checkpoint::ALL, false),
            Remat::Minimal => of(&minimal, false),
            Remat::SaveDotExceptMlp => of(&[QKV, OUT_PROJ], false),
            Remat::SaveQkv => of(&[QKV], false),
            Remat::SaveOut => of(&[ATTN_OUT, OUT_PROJ], false),
            Remat::Full => Vec::new(),
            Remat::MinimalOffload => of(&minimal, true),
            Remat::QkvOffload => of(&[QKV], true),
            Remat::Names(names) => names.clone(),
        }
    }

    /// Whether an activation is saved, on the device or in host memory.
    pub fn saves(&self, name: &str, offload: bool) -> bool {
        self.saved().iter().any(|saved| saved.name == name && saved.offload == offload)
    }

    /// Whether it moves activations to host memory.
    pub fn offloads(&self) -> bool {
        self.saved().iter().any(|saved| saved.offload)
    }

    /// The names that the model must have: those of a list.
    pub fn required(&self) -> &[SavedName] {
        if let Remat::Names(names) = self { names } else { &[] }
    }

    /// What a rematerialized layer saves, unless it is not rematerialized at all.
    pub(crate) fn policy(&self) -> Option<Policy> {
        let names = |offload: bool| {
            let saved = self.saved().into_iter().filter(|saved| saved.offload == offload);
            saved.map(|saved| saved.name.to_owned()).collect::<Vec<_>>()
        };
        let saved = [names(false), vec![NORM_STATS.to_owned()]].concat();
        match self {
            Remat::None => None,
            _ => Some(Policy::Named { saved, offloaded: names(true) }),
        }
    }
}

impl fmt::Display for Remat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((_, name)) = PRESETS.iter().find(|(preset, _)| preset == self) {
            return f.pad(name);
        }
        let items = self.saved().into_iter().map(|SavedName { name, offload }| {
            format!("{}{name}", if offload { OFFLOAD } else { "" })
        });
        f.pad(&items.collect::<Vec<_>>().join(","))
    }
}

impl From<Remat> for String {
    fn from(remat: Remat) -> String {
        remat.to_string()
    }
}

impl TryFrom<String> for Remat {
    type Error = RematError;

    fn try_from(text: String) -> Result<Remat, RematError> {
        text.parse()
    }
}

impl FromStr for Remat {
    type Err = RematError;

    fn from_str(text: &str) -> Result<Remat, RematError> {
        if let Some((preset, _)) = PRESETS.into_iter().find(|(_, name)| *name == text.trim()) {
            return Ok(preset);
        }
        let mut names: Vec<SavedName> = Vec::new();
        for item in text.split(',') {
            let saved = saved_name(item.trim(), text.contains(','))?;
            if names.iter().any(|known| known.name == saved.name) {
                return Err(RematError::Twice(saved.name));
            }
            names.push(saved);
        }
        Ok(Remat::Names(names))
    }
}

/// An item of a list, which may be the only one.
fn saved_name(item: &str, in_list: bool) -> Result<SavedName, RematError> {
    let stripped = item.strip_prefix(OFFLOAD);
    let (name, offload) = (stripped.unwrap_or(item), stripped.is_some());
    if let Some(&name) = checkpoint::ALL.iter().find(|known| **known == name) {
        return Ok(SavedName { name, offload });
    }
    let presets = PRESETS.iter().map(|(_, name)| *name).filter(|_| !in_list && !offload);
    let nearest = nearest(name, presets.chain(checkpoint::ALL.iter().copied()));
    Err(RematError::Unknown { given: item.to_owned(), nearest })
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(", did you mean `{name}`?"))
}

fn presets() -> String {
    PRESETS.map(|(_, name)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Strategy;

    #[test]
    fn names_round_trip() {
        let lists = ["qkv,attn_out", "offload:mlp_in", "qkv,offload:mlp_in"];
        let lists = lists.map(|list| list.parse::<Remat>().unwrap());
        for remat in Remat::presets().chain(lists) {
            assert_eq!(remat.to_string().parse(), Ok(remat.clone()));
            let json = serde_json::to_value(&remat).unwrap();
            assert_eq!(json, remat.to_string());
            assert_eq!(serde_json::from_value::<Remat>(json).unwrap(), remat);
        }
        for strategy in [Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard] {
            assert_eq!(serde_json::to_value(strategy).unwrap(), strategy.name());
        }
    }

    #[test]
    fn lists_state_what_is_saved_and_where() {
        let remat: Remat = " qkv, offload:mlp_in ".parse().unwrap();
        assert_eq!(remat.to_string(), "qkv,offload:mlp_in");
        assert!(remat.saves(QKV, false) && !remat.saves(QKV, true));
        assert!(remat.saves(MLP_IN, true) && !remat.saves(MLP_IN, false));
        assert!(!remat.saves(ATTN_OUT, false) && !remat.saves(ATTN_OUT, true));
        assert_eq!((remat.offloads(), remat.required().len()), (true, 2));
        assert!(!Remat::Minimal.offloads() && Remat::Minimal.required().is_empty());
        assert!(Remat::MinimalOffload.saved().iter().all(|saved| saved.offload));
    }

    #[test]
    fn rejects_unknown_and_repeated_names() {
        let error = |text: &str| text.parse::<Remat>().unwrap_err().to_string();
        for (text, given, nearest) in [
            ("dotz", "`dotz`", "did you mean `dots`?"),
            ("qkv,atn_out", "`atn_out`", "did you mean `attn_out`?"),
            ("offload:mlp_inn", "`offload:mlp_inn`", "did you mean `mlp_in`?"),
            ("qkv,full", "`full`", "the names"),
            ("", "``", "the names"),
        ] {
            let found = error(text);
            assert!(found.starts_with(given) && found.contains(nearest), "{found}");
            assert!(found.contains("save_qkv") && found.contains("out_proj"), "{found}");
        }
        assert!(error("qkv,offload:qkv").starts_with("`qkv` is in the list"));
    }
}
