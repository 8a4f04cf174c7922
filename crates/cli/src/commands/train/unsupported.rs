//! Flags of Hugging Face's scripts that change nothing here or cannot be honoured, so that a
//! command line that is known to work elsewhere is understood, and nothing is ignored in silence.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use fullshard::{Error, Result};

/// Those that were given.
#[derive(Default)]
pub struct Unsupported(Vec<(&'static Known, String)>);

/// A flag, values of it that are fine, and what to say of any other.
struct Known {
    name: &'static str,
    fine: &'static [&'static str],
    answer: Answer,
}

enum Answer {
    /// It makes no difference here.
    Nothing,
    /// It changes nothing, and this is why.
    Warn(&'static str),
    /// It cannot be honoured; this is the way out.
    Refuse(&'static str),
}

use Answer::{Nothing, Refuse, Warn};

const OFF: &[&str] = &["false", "no", "none", "0", "0.0"];

const fn known(name: &'static str, fine: &'static [&'static str], answer: Answer) -> Known {
    Known { name, fine, answer }
}

const KNOWN: &[Known] = &[
    known("auto_find_batch_size", OFF, Refuse("lower --per_device_train_batch_size by hand")),
    known("average_tokens_across_devices", &["true"], Refuse("losses always are averaged so")),
    known("dataloader_num_workers", &[], Nothing),
    known("dataloader_pin_memory", &[], Nothing),
    known("ddp_timeout", &[], Nothing),
    known("deepspeed", OFF, Refuse("--fsdp full_shard shards all that its stage 3 does")),
    known("fp16", OFF, Refuse("there is no loss scaling: use --bf16, which needs none")),
    known("full_determinism", &[], Nothing),
    known("greater_is_better", &[], Nothing),
    known("group_by_length", OFF, Refuse("all blocks have the same length")),
    known("hub_model_id", &[], Warn("nothing is pushed to the hub")),
    known("ignore_data_skip", &[], Nothing),
    known("include_num_input_tokens_seen", &[], Nothing),
    known("label_smoothing_factor", OFF, Refuse("labels cannot be smoothed")),
    known("load_best_model_at_end", OFF, Refuse("there are no checkpoints during a run yet")),
    known("local_rank", &[], Nothing),
    known("log_level", &[], Warn("use -v to show more, or the variable FULLSHARD_LOG")),
    known("logging_dir", &[], Warn("TensorBoard's files are in `runs` of the output folder")),
    known("low_cpu_mem_usage", &[], Nothing),
    known("metric_for_best_model", &[], Nothing),
    known("model_revision", &["main"], Refuse("models are read from folders")),
    known("neftune_noise_alpha", OFF, Refuse("noise cannot be added to embeddings")),
    known("preprocessing_num_workers", &[], Nothing),
    known("push_to_hub", OFF, Refuse("upload the output folder by hand")),
    known("remove_unused_columns", &[], Nothing),
    known(
        "resume_from_checkpoint",
        OFF,
        Refuse(
            "there are no checkpoints during a run yet; go on \
        from a finished model with --model_name_or_path",
        ),
    ),
    known("run_name", &[], Nothing),
    known("save_on_each_node", &[], Nothing),
    known("save_safetensors", &["true"], Refuse("models are only written as safetensors")),
    known("save_steps", &[], Warn("there are no checkpoints during a run yet")),
    known("save_total_limit", &[], Warn("there are no checkpoints during a run yet")),
    known("skip_memory_metrics", &[], Nothing),
    known("streaming", OFF, Warn("text always is tokenised as a stream, in bounded memory")),
    known("tf32", &[], Warn("XLA chooses how it multiplies in float32")),
    known("token", &[], Warn("use the variable HF_TOKEN")),
    known("torch_compile", &[], Nothing),
    known("torch_dtype", &[], Warn("use --dtype for the type to compute in")),
    known("trust_remote_code", OFF, Warn("no remote code is run")),
    known("use_cpu", OFF, Refuse("use --device cpu")),
    known("use_fast_tokenizer", &["true"], Warn("tokenizers always are the fast ones")),
];

impl Known {
    fn is_fine(&self, value: &str) -> bool {
        self.fine.iter().any(|fine| value.eq_ignore_ascii_case(fine))
    }
}

impl Unsupported {
    /// Refuses what cannot be honoured and warns of what changes nothing.
    pub fn check(&self) -> Result<()> {
        for (known, value) in &self.0 {
            let name = known.name;
            match known.answer {
                Nothing => {}
                _ if known.is_fine(value) => {}
                Warn(why) => tracing::warn!("--{name} changes nothing: {why}"),
                Refuse(way_out) => {
                    let text = format!("--{name} {value} is not supported: {way_out}");
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
