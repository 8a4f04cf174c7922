//! Jobs of published figures.
//!
//! What is published is a rate of failures and a goodput, rarely how long a restart takes or how
//! often a job saves. Where a job's own figure is not known, that of a similar system is taken, and
//! where there is none it is assumed: [`Preset::sources`] says which is which.

use super::{Copies, Job, Length, Saves, Stragglers};
use serde::Serialize;
use std::str::FromStr;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 60.0 * MINUTE;
const DAY: f64 = 24.0 * HOUR;

/// A job with a published goodput.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Llama 3 405B on 16,384 H100s.
    Llama3,
    /// Gemini 1 with copies of the state in memory.
    Gemini,
    /// The same with checkpoints in storage only, as before.
    GeminiCheckpoints,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 3] = [Preset::Llama3, Preset::Gemini, Preset::GeminiCheckpoints];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Llama3 => "llama-3",
            Preset::Gemini => "gemini",
            Preset::GeminiCheckpoints => "gemini-checkpoints",
        }
    }

    /// The goodput that was published.
    pub fn published(self) -> f64 {
        match self {
            Preset::Llama3 => 0.90,
            Preset::Gemini => 0.97,
            Preset::GeminiCheckpoints => 0.85,
        }
    }

    /// Where the figures of the job come from.
    pub fn sources(self) -> &'static str {
        match self {
            Preset::Llama3 => {
                "419 unexpected interruptions in 54 days (Llama 3); step of 16 M tokens at 41 % MFU; \
                 restart of 10 min (Meta reports 5 to 20); saves and loads of ByteCheckpoint's 405B; \
                 assumed: detection in 1 min, a save every 5 min, 64 spare hosts, repair in a day"
            }
            Preset::Gemini => {
                "0.08 % of machines fail per day (TPU v4); restart of 10 min (Gemini 2.5 on what \
                 came before), detection in 13 s (Pathways), 1 min to recover (GKE multi-tier); \
                 assumed: 4 pods of 1,024 hosts, copies every 10 steps of 10 s, 64 spare hosts, \
                 repair in a day"
            }
            Preset::GeminiCheckpoints => {
                "as gemini; 30 min to load and 5 min to write (GKE without its multi-tier \
                 checkpoints, and with them); assumed: a save every hour, with 10 s of pause"
            }
        }
    }

    /// The job.
    pub fn job(self) -> Job {
        match self {
            Preset::Llama3 => Job {
                hosts: 2048,
                min_hosts: 2048,
                spares: 64,
                step: 5.9,
                length: Length::Seconds(54.0 * DAY),
                host_mtbf: 54.0 * DAY / 419.0 * 2048.0,
                fail_at: Vec::new(),
                repair: DAY,
                detection: MINUTE,
                restart: 10.0 * MINUTE,
                load: 129.0,
                saves: Some(Saves { every: 50, pause: 0.59, write: 51.0 }),
                copies: None,
                stragglers: Stragglers::default(),
            },
            Preset::Gemini => Job {
                hosts: 4096,
                min_hosts: 4096,
                spares: 64,
                step: 10.0,
                length: Length::Seconds(54.0 * DAY),
                host_mtbf: DAY / 0.0008,
                fail_at: Vec::new(),
                repair: DAY,
                detection: 13.0,
                restart: 10.0 * MINUTE,
                load: 30.0 * MINUTE,
                saves: Some(Saves { every: 360, pause: 10.0, write: 5.0 * MINUTE }),
                copies: Some(Copies { every: 10, pause: 0.0, load: MINUTE }),
                stragglers: Stragglers::default(),
            },
            Preset::GeminiCheckpoints => Job { copies: None, ..Preset::Gemini.job() },
        }
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(name: &str) -> Result<Preset, String> {
        let found = Preset::ALL.into_iter().find(|preset| preset.name() == name);
        found.ok_or_else(|| format!("must be one of {}", Preset::ALL.map(Preset::name).join(", ")))
    }
}
