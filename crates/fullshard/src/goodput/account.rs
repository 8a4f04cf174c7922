//! Accounts for the time of a run: every moment from its first start to its last record belongs to
//! one part, so that the parts add up to the wall time.
//!
//! Records state when something ended and how long it took, so it reaches back from there to what
//! is accounted for already. What is left between two records belongs to a part by the state that
//! the run was in. Times that lie before what is accounted for, as after a step of the clock, are
//! moved there: no part is negative.

use super::event::{Ended, Event, Record};
use super::report::{Generation, Goodput, Part, Span};

/// The run that a journal ends with, and what its time was spent on; none if it has no run.
pub fn analyze(records: &[Record]) -> Option<Goodput> {
    let mut current: Option<Account> = None;
    let mut earlier = 0;
    for record in records.iter().filter(|record| is_time(record.time)) {
        match (&mut current, &record.event) {
            (Some(account), event) if !account.is_over_at(event) => {
                account.add(record.time, event);
            }
            (before, event @ Event::Start { run, .. }) => {
                earlier += usize::from(before.is_some());
                let mut account = Account::new(run, record.time);
                account.add(record.time, event);
                current = Some(account);
            }
            _ => {}
        }
    }
    let mut goodput = current?.finish();
    goodput.earlier_runs = earlier;
    Some(goodput)
}

/// Whether a number can be a time in seconds since 1970.
fn is_time(seconds: f64) -> bool {
    (0.0..1e11).contains(&seconds)
}

/// A duration that can be true.
fn duration(seconds: f64) -> f64 {
    if seconds.is_finite() { seconds.max(0.0) } else { 0.0 }
}

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A generation was started, and does not train yet.
    Starting,
    Training,
    Ended(Ended),
    /// It failed, and its supervisor knows.
    Failed,
}

/// A part of the time, with the steps that were trained in it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    span: Span,
    generation: usize,
    /// The first and the last step.
    steps: Option<(u64, u64)>,
    /// Whether these steps are the first launch of their generation.
    first: bool,
}

/// The account of a run. Times are in seconds since its first start.
struct Account {
    run: String,
    /// Its first start, in seconds since 1970.
    started: f64,
    /// What is accounted for.
    at: f64,
    /// Time that does not count: after the run was complete, until it went on.
    left_out: f64,
    /// What the clock of the current generation lags behind.
    lag: f64,
    state: State,
    entries: Vec<Entry>,
    /// The entries of steps that are not lost, which go on from one another.
    kept: Vec<usize>,
    generations: Vec<Generation>,
    failures: Vec<f64>,
    steps_lost: u64,
    pauses: Vec<f64>,
    writes: Vec<f64>,
}

impl Account {
    fn new(run: &str, started: f64) -> Account {
        Account {
            run: run.to_owned(),
            started,
            at: 0.0,
            left_out: 0.0,
            lag: 0.0,
            state: State::Ended(Ended::Done),
            entries: Vec::new(),
            kept: Vec::new(),
            generations: Vec::new(),
            failures: Vec::new(),
            steps_lost: 0,
            pauses: Vec::new(),
            writes: Vec::new(),
        }
    }

    /// Whether an event is the start of another run.
    fn is_over_at(&self, event: &Event) -> bool {
        let Event::Start { run, generation, starts_over, .. } = event else { return false };
        let is_done = self.state == State::Ended(Ended::Done);
        let is_restarted = *starts_over || generation.is_some_and(|generation| generation > 0);
        *run != self.run && (is_done || !is_restarted)
    }

    fn add(&mut self, time: f64, event: &Event) {
        let since = time - self.started - self.left_out;
        let here = since + self.lag;
        match event {
            Event::Start { .. } => self.start(since, event),
            Event::StartUp { weights, .. } => {
                self.claim(here, *weights, Part::Load);
                self.state = State::Training;
            }
            Event::Resumed { step, seconds, .. } => {
                self.lose_after(*step);
                self.generation(|generation| generation.resumed_from = Some(*step));
                // Otherwise it is part of the start-up.
                if self.state == State::Training {
                    self.claim(here, *seconds, Part::Load);
                }
            }
            Event::Steps { from, to, seconds } if from <= to => {
                self.steps(here, *from, *to, *seconds);
            }
            Event::Save { pause_s, .. } => {
                self.pauses.push(duration(*pause_s));
                self.claim(here, *pause_s, Part::Saving);
            }
            Event::Saved { seconds, .. } => self.writes.push(duration(*seconds)),
            Event::Evaluation { seconds } => self.claim(here, *seconds, Part::Evaluation),
            Event::Compile { seconds } => self.claim(here, *seconds, self.starting()),
            Event::Export { seconds } => self.claim(here, *seconds, Part::Saving),
            Event::Failure { .. } => self.fail(since, event),
            Event::End { how, reason } => {
                self.claim(here, 0.0, Part::Other);
                self.end(*how, reason.as_deref());
            }
            _ => {}
        }
    }

    /// A generation starts, at a time by its own clock.
    fn start(&mut self, since: f64, event: &Event) {
        let Event::Start { run, processes, devices, .. } = event else { return };
        self.run.clone_from(run);
        let mut since = since;
        let gap = match self.state {
            State::Starting | State::Training => {
                self.failures.push(self.at);
                self.generation(|generation| generation.fails("ended without a record"));
                Part::Down
            }
            State::Ended(Ended::Stopped | Ended::Failed) => Part::Down,
            State::Failed => Part::Restart,
            State::Ended(Ended::Done) => {
                let idle = (since - self.at).max(0.0);
                self.left_out += idle;
                since -= idle;
                Part::Other
            }
        };
        self.lag = (self.at - since).max(0.0);
        self.fill(since, gap);
        self.state = State::Starting;
        self.generations.push(Generation {
            started: self.started + self.left_out + self.at,
            from_s: self.at,
            to_s: self.at,
            processes: *processes,
            devices: *devices,
            ..Generation::default()
        });
    }

    /// The supervisor learns of a failure, at a time by its clock.
    fn fail(&mut self, since: f64, event: &Event) {
        let Event::Failure { process, host, reason, silent_s } = event else { return };
        let to = since.max(self.at);
        let silent = to - silent_s.map_or(f64::INFINITY, duration);
        match self.state {
            // Of a run that never started.
            State::Ended(Ended::Done) => return,
            State::Failed => self.fill(to, Part::Restart),
            State::Starting => {
                self.fill(silent.min(to), self.starting());
                self.fill(to, Part::Detection);
            }
            State::Training => {
                // It trained on, but the steps are not recorded, let alone saved.
                self.fill(silent.min(to), Part::Redone);
                self.fill(to, Part::Detection);
            }
            State::Ended(_) => self.fill(to, Part::Detection),
        }
        let is_known = self.state == State::Ended(Ended::Failed);
        self.state = State::Failed;
        if !is_known {
            self.failures.push(to);
        }
        let who = match (process, host) {
            (Some(process), Some(host)) => format!("process {process} ({host}): "),
            (Some(process), None) => format!("process {process}: "),
            (None, Some(host)) => format!("{host}: "),
            (None, None) => String::new(),
        };
        self.generation(|generation| {
            if generation.end.is_none() {
                generation.fails(&format!("{who}{reason}"));
            }
        });
    }

    fn end(&mut self, how: Ended, reason: Option<&str>) {
        self.state = State::Ended(how);
        match how {
            Ended::Done => self.generation(|generation| generation.end = Some("done".into())),
            Ended::Stopped => {
                self.generation(|generation| generation.end = Some("stopped by a signal".into()));
            }
            Ended::Failed => {
                self.failures.push(self.at);
                self.generation(|generation| generation.fails(reason.unwrap_or("failed")));
            }
        }
    }

    fn steps(&mut self, here: f64, from: u64, to: u64, seconds: f64) {
        self.lose_after(from.saturating_sub(1));
        let first = self.generations.last().is_some_and(|generation| generation.steps.is_none());
        let known = self.entries.len();
        self.claim(here, seconds, Part::Useful);
        self.generation(|generation| {
            let (first, _) = generation.steps.unwrap_or((from, to));
            generation.steps = Some((first, to));
        });
        let new = self.entries[known..].iter_mut().find(|it| it.span.part == Part::Useful);
        if let Some(entry) = new {
            (entry.steps, entry.first) = (Some((from, to)), first);
            self.kept.push(self.entries.len() - 1);
        }
    }

    /// Steps after one are lost: they are trained again.
    fn lose_after(&mut self, step: u64) {
        while let Some(&index) = self.kept.last() {
            let Entry { span, steps: Some((from, to)), .. } = self.entries[index] else { break };
            if to <= step {
                break;
            }
            self.kept.pop();
            self.steps_lost += to - step.max(from.saturating_sub(1));
            if from > step {
                self.entries[index].span.part = Part::Redone;
                continue;
            }
            let share = (step + 1 - from) as f64 / (to + 1 - from) as f64;
            let middle = span.from + share * (span.to - span.from);
            let mut lost = self.entries[index];
            lost.span = Span { from: middle, part: Part::Redone, ..span };
            (lost.steps, lost.first) = (Some((step + 1, to)), false);
            self.entries[index].span.to = middle;
            self.entries[index].steps = Some((from, step));
            self.entries.insert(index + 1, lost);
            self.kept.push(index);
        }
    }

    /// What start-ups belong to.
    fn starting(&self) -> Part {
        if self.generations.len() > 1 { Part::Restart } else { Part::StartUp }
    }

    /// Gives the seconds before a time to a part, as far as nothing else has them.
    fn claim(&mut self, to: f64, seconds: f64, part: Part) {
        let to = to.max(self.at);
        let trained = self.generations.last().is_some_and(|generation| generation.steps.is_some());
        let gap = if trained { Part::Other } else { self.starting() };
        self.fill((to - duration(seconds)).max(self.at), gap);
        self.fill(to, part);
        let at = self.at;
        self.generation(|generation| generation.to_s = at);
    }

    /// Gives the time until then to a part.
    fn fill(&mut self, to: f64, part: Part) {
        if to > self.at {
            let span = Span { from: self.at, to, part };
            let generation = self.generations.len();
            self.entries.push(Entry { span, generation, steps: None, first: false });
            self.at = to;
        }
    }

    fn generation(&mut self, change: impl FnOnce(&mut Generation)) {
        if let Some(generation) = self.generations.last_mut() {
            change(generation);
        }
    }

    /// The time and the number of steps of each generation, without those of first launches.
    fn step_times(&self) -> Vec<(f64, u64)> {
        let mut times = vec![(0.0, 0); self.generations.len() + 1];
        for Entry { span, steps, generation, .. } in self.entries.iter().filter(|it| !it.first) {
            if let (Some((from, to)), Some(sum)) = (steps, times.get_mut(*generation)) {
                *sum = (sum.0 + span.to - span.from, sum.1 + to + 1 - from);
            }
        }
        times
    }

    /// The spans. What a first launch takes longer than others is part of the start-up: devices
    /// connect to one another then.
    fn spans(&self, step_times: &[(f64, u64)]) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::with_capacity(self.entries.len());
        for Entry { span, generation, steps, first } in self.entries.iter().copied() {
            let steps = steps.filter(|_| first).map(|(from, to)| (to + 1 - from) as f64);
            let usual = steps.and_then(|steps| Some(steps * mean_of(step_times[generation])?));
            let middle = usual.map_or(span.from, |usual| (span.to - usual).max(span.from));
            let part = if generation > 1 { Part::Restart } else { Part::StartUp };
            for span in [Span { to: middle, part, ..span }, Span { from: middle, ..span }] {
                match spans.last_mut() {
                    _ if span.to <= span.from => {}
                    Some(last) if last.part == span.part => last.to = span.to,
                    _ => spans.push(span),
                }
            }
        }
        spans
    }

    fn finish(self) -> Goodput {
        let times = self.step_times();
        let spans = self.spans(&times);
        let all = times.iter().fold((0.0, 0), |all, it| (all.0 + it.0, all.1 + it.1));
        let mean = |times: &[f64]| mean_of((times.iter().sum(), times.len() as u64));
        Goodput {
            run: self.run,
            started: self.started,
            wall_s: self.at,
            parts: Part::times(&spans),
            steps: self.kept.last().and_then(|&index| self.entries[index].steps).map(|it| it.1),
            steps_lost: self.steps_lost,
            failures: self.failures,
            saves: self.pauses.len(),
            pause_s: mean(&self.pauses),
            write_s: mean(&self.writes),
            step_time_s: mean_of(all),
            generations: self.generations,
            earlier_runs: 0,
            spans,
        }
    }
}

/// The mean of a sum over a number, if there are any.
fn mean_of((sum, count): (f64, u64)) -> Option<f64> {
    (count > 0).then(|| sum / count as f64)
}
