//! Flags of Hugging Face's scripts that have no effect here or are not supported, so that their
//! command lines parse and nothing is ignored silently.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use fullshard::{Error, Result};

/// The given ones.
#[derive(Default)]
pub struct Unsupported(Vec<(&'static Known, String)>);

/// A flag, its accepted values, and the response to any other.
struct Known {
    name: &'static str,
    fine: &'static [&'static str],
    answer: Answer,
}

enum Answer {
    /// No effect, with the reason.
    Warn(&'static str),
    /// Not supported, with a fix.
    Refuse(&'static str),
}

use Answer::{Refuse, Warn};

const OFF: &[&str] = &["false", "no", "none", "0", "0.0"];

const fn known(name: &'static str, fine: &'static [&'static str], answer: Answer) -> Known {
    Known { name, fine, answer }
}

const KNOWN: &[Known] = &[
    known("auto_find_batch_size", OFF, Refuse("lower --per_device_train_batch_size by hand")),
    known("average_tokens_across_devices", &["true"], Refuse("losses are always averaged so")),
    known("dataloader_num_workers", OFF, Warn("one thread prepares batches ahead of the devices")),
    known("dataloader_pin_memory", &[], Warn("the runtime stages batches itself")),
    known("ddp_timeout", &[], Warn("processes wait for one another until one fails")),
    known("deepspeed", OFF, Refuse("--fsdp full_shard shards all that its stage 3 does")),
    known("fp16", OFF, Refuse("there is no loss scaling: use --bf16, which needs none")),
    known("group_by_length", OFF, Refuse("all blocks have the same length")),
    known("hub_model_id", &[], Warn("nothing is pushed to the hub")),
    known("include_num_input_tokens_seen", OFF, Warn("tokens/s is always logged")),
    known("label_smoothing_factor", OFF, Refuse("label smoothing is not implemented")),
    known("local_rank", &[], Warn("launchers state it by their environment: docs/hosts.md")),
    known("log_level", &[], Warn("use -v to show more, or the variable FULLSHARD_LOG")),
    known("logging_dir", &[], Warn("TensorBoard's files are in `runs` of the output folder")),
    known("low_cpu_mem_usage", &[], Warn("weights are read shard by shard")),
    known("neftune_noise_alpha", OFF, Refuse("noise on embeddings is not implemented")),
    known("preprocessing_num_workers", &[], Warn("text is tokenized on all cores")),
    known("push_to_hub", OFF, Refuse("upload the output folder by hand")),
    known("remove_unused_columns", &[], Warn("only the text column is read")),
    known("run_name", &[], Warn("runs are named after their output folder")),
    known("save_on_each_node", OFF, Warn("all hosts write to one shared folder")),
    known("save_safetensors", &["true"], Refuse("models are only written as safetensors")),
    known("skip_memory_metrics", &[], Warn("memory is always logged, at no cost")),
    known("streaming", OFF, Warn("text is always tokenized as a stream, in bounded memory")),
    known("tf32", &[], Warn("XLA chooses the precision of float32 matmuls")),
    known("torch_compile", &[], Warn("the whole step is always compiled, by XLA")),
    known("torch_dtype", &[], Warn("use --dtype for the compute dtype")),
    known("trust_remote_code", OFF, Warn("no remote code is run")),
    known("use_cpu", OFF, Refuse("use --device cpu")),
    known("use_fast_tokenizer", &["true"], Warn("tokenizers are always the fast ones")),
];

impl Known {
    fn is_fine(&self, value: &str) -> bool {
        self.fine.iter().any(|fine| value.eq_ignore_ascii_case(fine))
    }
}

impl Unsupported {
    /// Rejects unsupported flags and warns of flags without effect.
    pub fn check(&self) -> Result<()> {
        for (known, value) in &self.0 {
            let name = known.name;
            match known.answer {
                _ if known.is_fine(value) => {}
                Warn(why) => tracing::warn!("--{name} has no effect: {why}"),
                Refuse(fix) => {
                    let text = format!("--{name} {value} is not supported: {fix}");
                    return Err(Error::Usage(text));
                }
            }
        }
        Ok(())
    }
}

impl Args for Unsupported {
    fn augment_args(command: Command) -> Command {
        KNOWN.iter().fold(command, |command, known| {
            let arg = Arg::new(known.name).long(known.name).hide(true);
            command.arg(arg.num_args(0..=1).default_missing_value("true"))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Unsupported::augment_args(command)
    }
}

impl FromArgMatches for Unsupported {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Unsupported, clap::Error> {
        let value = |known: &'static Known| {
            let value = matches.get_one::<String>(known.name)?;
            Some((known, value.clone()))
        };
        Ok(Unsupported(KNOWN.iter().filter_map(value).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Unsupported::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that no flag takes as the default.
    const OTHER: &str = "7";

    #[test]
    fn no_flag_is_silent() {
        for known in KNOWN {
            assert!(!known.is_fine(OTHER), "--{}", known.name);
            let (Warn(reason) | Refuse(reason)) = known.answer;
            assert!(reason.len() > 10, "--{} has no reason", known.name);
        }
    }

    #[test]
    fn names_the_flag_that_is_not_supported() {
        for known in KNOWN.iter().filter(|known| matches!(known.answer, Refuse(_))) {
            let error = Unsupported(vec![(known, OTHER.to_owned())]).check().unwrap_err();
            assert!(error.to_string().contains(&format!("--{} ", known.name)), "{error}");
        }
    }

    #[test]
    fn knows_no_flag_that_has_an_effect() {
        for flag in fullshard::config::Flags::all() {
            assert!(KNOWN.iter().all(|known| known.name != flag.name), "--{}", flag.name);
        }
    }
}
