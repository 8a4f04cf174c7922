//! How long a step takes: its schedule played through.
//!
//! Instructions run one after another in the order of the schedule, bodies of loops as often as
//! the loop says. An exchange that is begun and ended apart runs beside what is scheduled between,
//! one exchange at a time; what is not done by its end is waited for. Copies that run beside other
//! work do the same with memory. A loop's body is played once: every turn is like the first.

use super::cost;
use super::paths::{Belongs, Paths};
use crate::machine::Machine;
use crate::report::{Exchanged, ModuleTime, Time};
use fullshard_parallel::AXIS;
use fullshard_pjrt::hlo::{
    Algorithm, Collective, CollectiveKind, Computation, Instruction, InstructionId, Module,
    collective, condition_and_body, trip_count,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// What came of playing a schedule.
#[derive(Debug, Default)]
pub struct Played {
    /// The time.
    pub time: Time,
    /// What was exchanged.
    pub exchanged: Vec<Exchanged>,
    /// How the compiler says that it exchanges: the kind, its name for it, and how many streams.
    pub algorithms: BTreeSet<(CollectiveKind, String, Option<usize>)>,
    /// Loops whose length was not found, so that each counts once.
    pub unknown_loops: usize,
}

/// Plays the schedule of a compiled step.
pub fn play(module: &Module, machine: &Machine, paths: &Paths) -> Played {
    let mut player = Player { module, machine, paths, played: Played::default() };
    player.computation(module.entry(), 1.0);
    let mut played = player.played;
    let time = &mut played.time;
    time.step = time.compute + time.exposed;
    time.modules.retain(|module| module.compute + module.exposed > 0.0);
    played.exchanged.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    played
}

struct Player<'a> {
    module: &'a Module,
    machine: &'a Machine,
    paths: &'a Paths,
    played: Played,
}

/// Where a computation stands.
#[derive(Default)]
struct Clock {
    now: f64,
    /// When the network has nothing more to do.
    network: f64,
    /// When copies beside other work are done.
    memory: f64,
    /// What was begun: when it is done, and what it is if it is an exchange.
    begun: HashMap<InstructionId, (f64, Option<Begun>)>,
    /// Exchanges that several instructions do together, by what tells them.
    chains: HashMap<String, (f64, Begun)>,
}

#[derive(Clone, Copy)]
struct Begun {
    row: usize,
    seconds: f64,
}

impl Player<'_> {
    /// Plays a computation that runs so many times; gives the seconds of one.
    fn computation(&mut self, computation: &Computation, times: f64) -> f64 {
        let belongs = self.paths.of(computation);
        let nothing = Belongs::default();
        let last_of_chain = last_of_chains(self.module, computation);
        let mut clock = Clock::default();
        for instruction in computation.instructions() {
            let belongs = belongs.get(&instruction.id).unwrap_or(&nothing);
            match instruction.opcode.as_str() {
                "while" => clock.now += self.whole_loop(instruction, times),
                "call" => clock.now += self.called(instruction, times),
                "conditional" => clock.now += self.longest_branch(instruction, times),
                _ if is_end(instruction) => {
                    self.end(computation, instruction, belongs, times, &mut clock);
                }
                _ => match collective(self.module, instruction) {
                    Some(found) => {
                        let last = last_of_chain.contains(&instruction.id);
                        let place = (instruction, belongs, times);
                        self.exchange(place, &found, last, &mut clock);
                    }
                    None => self.compute(instruction, belongs, times, &mut clock),
                },
            }
        }
        clock.now
    }

    fn whole_loop(&mut self, instruction: &Instruction, times: f64) -> f64 {
        let Some((condition, body)) = condition_and_body(self.module, instruction) else {
            return 0.0;
        };
        let trips = trip_count(self.module, instruction);
        self.played.unknown_loops += usize::from(trips.is_none());
        let trips = trips.unwrap_or(1) as f64;
        let test = self.computation(condition, times * (trips + 1.0));
        let turn = self.computation(body, times * trips);
        trips * turn + (trips + 1.0) * test
    }

    fn called(&mut self, instruction: &Instruction, times: f64) -> f64 {
        let called = instruction.called.iter().filter_map(|&id| self.module.computation(id));
        called.map(|called| self.computation(called, times)).sum()
    }

    /// Only one branch runs; the longest, to be safe.
    fn longest_branch(&mut self, instruction: &Instruction, times: f64) -> f64 {
        let branches = instruction.called.iter().filter_map(|&id| self.module.computation(id));
        let timed = branches.map(|branch| {
            let mut alone = Player {
                module: self.module,
                machine: self.machine,
                paths: self.paths,
                played: Played::default(),
            };
            (alone.computation(branch, 1.0), branch)
        });
        let longest = timed.max_by(|a, b| a.0.total_cmp(&b.0));
        longest.map_or(0.0, |(_, branch)| self.computation(branch, times))
    }

    fn compute(
        &mut self,
        instruction: &Instruction,
        belongs: &Belongs,
        times: f64,
        clock: &mut Clock,
    ) {
        if is_begin(instruction) {
            let moved = cost::traffic(self.module, instruction) as f64;
            let done = clock.now.max(clock.memory) + moved / self.machine.chip.bandwidth;
            clock.memory = done;
            clock.begun.insert(instruction.id, (done, None));
            return;
        }
        let seconds = cost::seconds(self.module, instruction, self.machine);
        clock.now += seconds;
        self.add(belongs, times * seconds, 0.0);
    }

    /// An exchange: all of it, its beginning, or one of several instructions that do it together.
    fn exchange(
        &mut self,
        (instruction, belongs, times): (&Instruction, &Belongs, f64),
        found: &Collective,
        last: bool,
        clock: &mut Clock,
    ) {
        let begun_before = found.chain.as_ref().and_then(|chain| clock.chains.get(chain)).copied();
        let (done, begun) = begun_before.unwrap_or_else(|| {
            let begun = self.row(instruction, found, times);
            let done = clock.now.max(clock.network) + begun.seconds;
            clock.network = done;
            (done, begun)
        });
        if let Some(chain) = &found.chain {
            clock.chains.insert(chain.clone(), (done, begun));
            let seconds = cost::seconds(self.module, instruction, self.machine);
            clock.now += seconds;
            self.add(belongs, times * seconds, 0.0);
            if last {
                self.wait(done, begun, belongs, times, clock);
            }
        } else if found.asynchronous {
            clock.begun.insert(instruction.id, (done, Some(begun)));
        } else {
            self.wait(done, begun, belongs, times, clock);
        }
    }

    /// The end of something that was begun before.
    fn end(
        &mut self,
        computation: &Computation,
        instruction: &Instruction,
        belongs: &Belongs,
        times: f64,
        clock: &mut Clock,
    ) {
        let Some(begin) = beginning(computation, instruction) else { return };
        match clock.begun.remove(&begin) {
            Some((done, Some(begun))) => self.wait(done, begun, belongs, times, clock),
            Some((done, None)) => {
                let waited = (done - clock.now).max(0.0);
                clock.now += waited;
                self.add(belongs, times * waited, 0.0);
            }
            None => {}
        }
    }

    /// Waits for an exchange.
    fn wait(&mut self, done: f64, begun: Begun, belongs: &Belongs, times: f64, clock: &mut Clock) {
        let waited = (done - clock.now).max(0.0);
        // What is not asynchronous is waited for to the end, but for rounding.
        let hidden = begun.seconds - waited;
        let hidden = if hidden > 1e-9 * begun.seconds { hidden } else { 0.0 };
        clock.now += waited;
        self.add(belongs, 0.0, times * waited);
        self.played.time.hidden += times * hidden;
        self.played.exchanged[begun.row].hidden += times * hidden;
    }

    /// The row of exchanges like this, one run more often.
    fn row(&mut self, instruction: &Instruction, found: &Collective, times: f64) -> Begun {
        let devices = self.machine.devices;
        let group = found.group_size.unwrap_or(devices);
        let bytes = found.bytes.unwrap_or(0);
        let network = &self.machine.network;
        let streams = instruction.algorithm().and_then(|algorithm| {
            let Algorithm { name, streams } = algorithm;
            self.played.algorithms.insert((found.kind, name, streams));
            streams.filter(|&streams| streams > 1)
        });
        let seconds = match streams {
            Some(_) => network.rotated().seconds(found.kind, bytes, group, devices),
            None => network.seconds(found.kind, bytes, group, devices),
        };
        let kind = found.kind.to_string();
        let rows = &mut self.played.exchanged;
        let like = |row: &Exchanged| (row.kind == kind) && (row.group, row.bytes) == (group, bytes);
        let row = rows.iter().position(like).unwrap_or_else(|| {
            let axis = AXIS.to_owned();
            let new = Exchanged { kind, axis, group, count: 0, bytes, seconds: 0.0, hidden: 0.0 };
            rows.push(new);
            rows.len() - 1
        });
        rows[row].count += times as u64;
        rows[row].seconds += times * seconds;
        Begun { row, seconds }
    }

    fn add(&mut self, belongs: &Belongs, compute: f64, exposed: f64) {
        let time = &mut self.played.time;
        time.compute += compute;
        time.exposed += exposed;
        let like =
            |row: &ModuleTime| row.module == belongs.module && row.backward == belongs.backward;
        let row = time.modules.iter().position(like).unwrap_or_else(|| {
            let Belongs { module, backward } = belongs.clone();
            time.modules.push(ModuleTime { module, backward, compute: 0.0, exposed: 0.0 });
            time.modules.len() - 1
        });
        time.modules[row].compute += compute;
        time.modules[row].exposed += exposed;
    }
}

/// The last instruction of each chain that does an exchange together.
fn last_of_chains(module: &Module, computation: &Computation) -> HashSet<InstructionId> {
    let mut last: HashMap<String, InstructionId> = HashMap::new();
    for instruction in computation.instructions() {
        let found = collective(module, instruction);
        if let Some(chain) = found.and_then(|found| found.chain) {
            last.insert(chain, instruction.id);
        }
    }
    last.into_values().collect()
}

/// Whether it begins a copy beside other work.
fn is_begin(instruction: &Instruction) -> bool {
    instruction.opcode.ends_with("-start")
}

fn is_end(instruction: &Instruction) -> bool {
    instruction.opcode.ends_with("-done") || instruction.opcode == "async-update"
}

/// What an end is the end of. What goes on in between ends nothing.
fn beginning(computation: &Computation, end: &Instruction) -> Option<InstructionId> {
    if end.opcode == "async-update" {
        return None;
    }
    let mut begin = computation.operands(end).next()?;
    while begin.opcode == "async-update" {
        begin = computation.operands(begin).next()?;
    }
    Some(begin.id)
}
