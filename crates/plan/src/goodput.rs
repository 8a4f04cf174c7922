//! How much of its time a job trains when hosts fail, by formula.
//!
//! A failure costs the time until it is known, the restart, loading the last checkpoint, and the
//! steps since. With failures at random every M seconds, a checkpoint of δ seconds after every τ
//! seconds of steps, and r seconds from a failure to the first new step, the expected time of an
//! interval is M·e^(r/M)·(e^((τ+δ)/M) − 1) (Daly): attempts fail too, so that a job whose failures
//! come faster than its restarts stands still. The best interval is about √(2·δ·M) (Young).
//!
//! A checkpoint that is written behind the steps counts when it is written: what is lost is older
//! by that time, which is added to r.

use crate::machine::Machine;
use crate::report::Rates;
use crate::start_up::StartUp;
use fullshard_core::Platform;
use serde::Serialize;

/// Days between failures of one GPU host of eight: Llama 3 had 419 unexpected interruptions in 54
/// days on 2,048 of them.
const GPU_HOST_MTBF: f64 = 54.0 * 2048.0 / 419.0;

/// Days between failures of one other host: of the machines of TPU v4, 0.08 % failed per day.
const HOST_MTBF: f64 = 1.0 / 0.0008;

/// Seconds until a host that is gone is noticed: the time-out of heartbeats.
const DETECTION: f64 = 10.0;

/// Seconds to start processes and devices again and to get to the first step, beside what a
/// start-up counts: those of an elastic run of MaxText on v5e slices, 50 to schedule and 13 to the
/// next step. Schedulers differ: Meta reports 5 to 20 minutes.
const RELAUNCH: f64 = 63.0;

/// Bytes per second from a TPU to its host's memory, and through the memory of a CPU: GPT-2 304M
/// (docs/performance.md).
const TPU_COPY_RATE: f64 = 16e9;
const CPU_COPY_RATE: f64 = 7.5e9;

/// What is known of failures and saves. What is not is taken from published figures.
#[derive(Debug, Clone, Copy, Default)]
pub struct Failures {
    /// Mean days between failures of one host.
    pub host_mtbf_days: Option<f64>,
    /// Seconds from a known failure until hosts load a checkpoint.
    pub restart: Option<f64>,
    /// Steps between checkpoints; otherwise the best number.
    pub save_steps: Option<f64>,
}

/// What interrupts the steps of a job. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interruptions {
    /// Mean time between failures anywhere in the job; infinite for none.
    pub mtbf: f64,
    /// From a failure until the job knows of it.
    pub detection: f64,
    /// From then until hosts load a checkpoint.
    pub restart: f64,
    /// Loading a checkpoint.
    pub load: f64,
    /// Steps between two checkpoints.
    pub save_interval: f64,
    /// How long steps wait for a checkpoint.
    pub save_pause: f64,
    /// Writing it behind the steps.
    pub save_write: f64,
}

impl Interruptions {
    /// The share of the time that is spent on steps that count.
    pub fn goodput(&self) -> f64 {
        let interval = self.save_interval + self.save_pause;
        if self.mtbf.is_infinite() {
            return self.save_interval / interval;
        }
        let expected =
            self.mtbf * (self.recovery() / self.mtbf).exp() * (interval / self.mtbf).exp_m1();
        self.save_interval / expected
    }

    /// The best time between two checkpoints; the next one waits for the write of one.
    pub fn best_interval(&self) -> f64 {
        (2.0 * self.save_pause * self.mtbf).sqrt().max(self.save_write)
    }

    /// From a failure to steps that are new, if it happens right after a save.
    fn recovery(&self) -> f64 {
        self.detection + self.restart + self.load + self.save_write
    }
}

/// The expected goodput of a planned run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Goodput {
    /// The share of the time that is spent on steps that count.
    pub goodput: f64,
    /// Number of hosts.
    pub hosts: usize,
    /// Mean days between failures of one host.
    pub host_mtbf_days: f64,
    /// Whether these are given, rather than published for similar hosts.
    pub given_mtbf: bool,
    /// What a failure and a save cost.
    pub interruptions: Interruptions,
    /// Steps between checkpoints.
    pub save_steps: f64,
    /// The best number of them.
    pub best_save_steps: f64,
    /// Days to train on the given number of tokens, with failures and saves.
    pub days: Option<f64>,
    /// Cost of those days at the given price, in US dollars.
    pub cost_usd: Option<f64>,
}

impl Goodput {
    /// The goodput of steps of `step` seconds on a machine.
    pub fn new(
        machine: &Machine,
        step: f64,
        start_up: &StartUp,
        rates: &Rates,
        failures: Failures,
    ) -> Goodput {
        let published = if machine.kind == Platform::Cuda { GPU_HOST_MTBF } else { HOST_MTBF };
        let host_mtbf_days = failures.host_mtbf_days.unwrap_or(published);
        // The compiled program is in the cache.
        let again = RELAUNCH + start_up.rendezvous + start_up.programs;
        let mut interruptions = Interruptions {
            mtbf: 86_400.0 * host_mtbf_days / machine.hosts as f64,
            detection: DETECTION,
            restart: failures.restart.unwrap_or(again),
            load: start_up.weights,
            save_interval: 0.0,
            save_pause: start_up.host_state() / copy_rate(machine),
            save_write: start_up.weights,
        };
        let best_save_steps = (interruptions.best_interval() / step).round().max(1.0);
        let save_steps = failures.save_steps.unwrap_or(best_save_steps);
        interruptions.save_interval = save_steps * step;
        let goodput = interruptions.goodput();
        let longer = |without: f64| without / goodput;
        Goodput {
            goodput,
            hosts: machine.hosts,
            host_mtbf_days,
            given_mtbf: failures.host_mtbf_days.is_some(),
            interruptions,
            save_steps,
            best_save_steps,
            days: rates.days.map(longer),
            cost_usd: rates.cost_usd.map(longer),
        }
    }
}

/// A part of the time that is not spent on steps that count.
#[derive(Debug, Clone, PartialEq)]
pub struct LostTime {
    /// Its name.
    pub what: &'static str,
    /// Its seconds, each time.
    pub seconds: f64,
    /// When it is lost.
    pub when: String,
}

impl Goodput {
    /// What is lost, in order.
    pub fn parts(&self) -> Vec<LostTime> {
        let it = &self.interruptions;
        let half = (it.save_interval + it.save_pause) / 2.0;
        let part = |what, seconds, when: &str| LostTime { what, seconds, when: when.to_owned() };
        let (every, best) = (self.save_steps, self.best_save_steps);
        let saving = format!("every {every:.0} steps; the best is every {best:.0}");
        vec![
            part("detection", it.detection, "per failure"),
            part("restart", it.restart, "per failure: processes start and have their programs"),
            part("load", it.load, "per failure: each host reads its share of a checkpoint"),
            part(
                "redone steps",
                half + it.save_write,
                "per failure: half of what is between saves, and what a write takes",
            ),
            part("saving", it.save_pause, &saving),
        ]
    }

    /// The mean time between failures, such as `3.1 hours`.
    pub fn failure_every(&self) -> String {
        match self.interruptions.mtbf {
            seconds if seconds < 7200.0 => format!("{:.1} minutes", seconds / 60.0),
            seconds if seconds < 172_800.0 => format!("{:.1} hours", seconds / 3600.0),
            seconds => format!("{:.1} days", seconds / 86_400.0),
        }
    }
}

/// Bytes per second at which a host copies the state of all its devices.
fn copy_rate(machine: &Machine) -> f64 {
    let per_host = machine.devices.div_ceil(machine.hosts) as f64;
    match machine.kind {
        Platform::Cpu => CPU_COPY_RATE,
        _ => per_host * machine.chip.host_link.unwrap_or(TPU_COPY_RATE),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const HOUR: f64 = 3600.0;

    /// A goodput to print.
    pub(crate) fn example() -> Goodput {
        Goodput {
            goodput: 0.94,
            hosts: 16,
            host_mtbf_days: 1250.0,
            given_mtbf: false,
            interruptions: Interruptions {
                mtbf: 6.75e6,
                detection: 10.0,
                restart: 63.0,
                load: 5.0,
                save_interval: 4000.0,
                save_pause: 0.1,
                save_write: 5.0,
            },
            save_steps: 500.0,
            best_save_steps: 145.0,
            days: Some(45.0),
            cost_usd: Some(330_000.0),
        }
    }

    fn job(mtbf: f64, save_interval: f64) -> Interruptions {
        Interruptions {
            mtbf,
            detection: 10.0,
            restart: 60.0,
            load: 30.0,
            save_interval,
            save_pause: 2.0,
            save_write: 20.0,
        }
    }

    #[test]
    fn without_failures_only_saves_cost() {
        assert_eq!(job(f64::INFINITY, 98.0).goodput(), 0.98);
    }

    /// To first order a failure costs its recovery and half an interval.
    #[test]
    fn rare_failures_cost_half_an_interval_each() {
        let job = job(100.0 * HOUR, 600.0);
        let lost = (10.0 + 60.0 + 30.0 + 20.0 + 301.0) / job.mtbf + 2.0 / 600.0;
        assert!((job.goodput() - 1.0 / (1.0 + lost)).abs() < 1e-5, "{}", job.goodput());
    }

    #[test]
    fn best_interval_is_best() {
        let best = job(HOUR, 1.0).best_interval();
        assert!((best - 120.0).abs() < 1e-9);
        let goodput = |interval| job(HOUR, interval).goodput();
        for factor in [0.5, 0.7, 1.5, 2.0] {
            assert!(goodput(factor * best) < goodput(best), "{factor}");
        }
    }

    #[test]
    fn failures_faster_than_restarts_leave_nothing() {
        assert!(job(10.0, 600.0).goodput() < 1e-20);
        assert_eq!(job(0.01, 600.0).goodput(), 0.0);
    }

    /// The Llama 3 paper reports more than 90 % with restarts that others put at 5 to 20 minutes.
    #[test]
    fn published_rates_give_published_goodput() {
        let llama = |restart| Interruptions {
            mtbf: 54.0 * 24.0 * HOUR / 419.0,
            detection: 60.0,
            restart,
            load: 129.0,
            save_interval: 295.0,
            save_pause: 0.59,
            save_write: 51.0,
        };
        assert!(llama(300.0).goodput() > 0.9 && llama(1200.0).goodput() < 0.9);
    }
}
