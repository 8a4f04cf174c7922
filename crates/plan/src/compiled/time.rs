//! Step time from a simulation of the schedule.
//!
//! Instructions run one after another in schedule order, loop bodies as many times as the trip
//! count. An asynchronous collective overlaps with what is scheduled between its start and done;
//! the done waits for the rest. Collectives that need the same links run one after another, so that
//! a wait may be longer than the collective itself. Asynchronous copies overlap with compute too,
//! one at a time inside the device, one to and one from the host. A loop body is simulated once: all
//! iterations are alike.

use super::cost::{self, Route};
use super::paths::{Owner, Paths};
use crate::describe::axes_of;
use crate::machine::Machine;
use crate::network::Phase;
use crate::report::{CollectiveTime, ModuleTime, Time};
use fullshard_graph::Mesh;
use fullshard_pjrt::hlo::{
    Algorithm, Collective, CollectiveKind, Computation, Instruction, InstructionId, Members,
    Module, collective, condition_and_body, trip_count,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The result of simulating a schedule.
#[derive(Debug, Default)]
pub struct Simulation {
    /// The time.
    pub time: Time,
    /// The collectives.
    pub collective_times: Vec<CollectiveTime>,
    /// The compiler's collective algorithms: kind, name and number of streams.
    pub algorithms: BTreeSet<(CollectiveKind, String, Option<usize>)>,
    /// Loops with unknown trip count, each counted once.
    pub unknown_loops: usize,
}

/// Simulates the schedule of a compiled step.
pub fn simulate(module: &Module, machine: &Machine, mesh: &Mesh, paths: &Paths) -> Simulation {
    let simulation = Simulation::default();
    let mut simulator = Simulator { module, machine, mesh, paths, simulation };
    simulator.computation(module.entry(), 1.0);
    let mut simulation = simulator.simulation;
    let time = &mut simulation.time;
    time.step = time.compute + time.exposed;
    time.modules.retain(|module| module.compute + module.exposed > 0.0);
    simulation.collective_times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    simulation
}

impl Simulation {
    /// The share of one step in a launch of several.
    pub fn per_step(mut self, steps: usize) -> Simulation {
        let share = |seconds: &mut f64| *seconds /= steps as f64;
        let Time { step, compute, exposed, contention, hidden, modules } = &mut self.time;
        [step, compute, exposed, contention, hidden].into_iter().for_each(share);
        modules.iter_mut().flat_map(|it| [&mut it.compute, &mut it.exposed]).for_each(share);
        for row in &mut self.collective_times {
            row.count /= steps as u64;
            [&mut row.seconds, &mut row.hidden].into_iter().for_each(share);
        }
        self
    }
}

struct Simulator<'a> {
    module: &'a Module,
    machine: &'a Machine,
    mesh: &'a Mesh,
    paths: &'a Paths,
    simulation: Simulation,
}

/// The times of a computation.
#[derive(Default)]
struct Clock {
    now: f64,
    /// When each lane of the network is free.
    lanes: Vec<f64>,
    /// When the asynchronous copies of each route are done.
    copies: HashMap<Route, f64>,
    /// Asynchronous operations in flight: when each is done, and its collective if it is one.
    started: HashMap<InstructionId, (f64, Option<Started>)>,
    /// Collectives that span several instructions, by the name of their chain.
    chains: HashMap<String, (f64, Started)>,
}

#[derive(Clone, Copy)]
struct Started {
    row: usize,
    seconds: f64,
}

impl Clock {
    /// When a collective that starts now is done, if each of its phases waits for its lanes.
    fn occupy(&mut self, phases: &[Phase]) -> f64 {
        phases.iter().fold(self.now, |ready, phase| {
            let free = phase.lanes.iter().map(|&lane| self.lanes[lane]).fold(ready, f64::max);
            let done = free + phase.seconds;
            phase.lanes.iter().for_each(|&lane| self.lanes[lane] = done);
            done
        })
    }
}

impl Simulator<'_> {
    /// Simulates a computation that runs `times` times; returns the seconds of one run.
    fn computation(&mut self, computation: &Computation, times: f64) -> f64 {
        let owners = self.paths.of(computation);
        let none = Owner::default();
        let last_of_chain = last_of_chains(self.module, computation);
        let lanes = vec![0.0; self.machine.network.lanes()];
        let mut clock = Clock { lanes, ..Clock::default() };
        for instruction in computation.instructions() {
            let owner = owners.get(&instruction.id).unwrap_or(&none);
            match instruction.opcode.as_str() {
                "while" => clock.now += self.while_loop(instruction, times),
                "call" => clock.now += self.called(instruction, times),
                "conditional" => clock.now += self.longest_branch(instruction, times),
                _ if is_end(instruction) => {
                    self.end(computation, instruction, owner, times, &mut clock);
                }
                _ => match collective(self.module, instruction) {
                    Some(found) => {
                        let last = last_of_chain.contains(&instruction.id);
                        let place = (instruction, owner, times);
                        self.collective(place, &found, last, &mut clock);
                    }
                    None => self.compute(instruction, owner, times, &mut clock),
                },
            }
        }
        clock.now
    }

    fn while_loop(&mut self, instruction: &Instruction, times: f64) -> f64 {
        let Some((condition, body)) = condition_and_body(self.module, instruction) else {
            return 0.0;
        };
        let trips = trip_count(self.module, instruction);
        self.simulation.unknown_loops += usize::from(trips.is_none());
        let trips = trips.unwrap_or(1) as f64;
        let test = self.computation(condition, times * (trips + 1.0));
        let iteration = self.computation(body, times * trips);
        trips * iteration + (trips + 1.0) * test
    }

    fn called(&mut self, instruction: &Instruction, times: f64) -> f64 {
        let called = instruction.called.iter().filter_map(|&id| self.module.computation(id));
        called.map(|called| self.computation(called, times)).sum()
    }

    /// Only one branch runs; the longest is assumed.
    fn longest_branch(&mut self, instruction: &Instruction, times: f64) -> f64 {
        let branches = instruction.called.iter().filter_map(|&id| self.module.computation(id));
        let timed = branches.map(|branch| {
            let mut simulator = Simulator {
                module: self.module,
                machine: self.machine,
                mesh: self.mesh,
                paths: self.paths,
                simulation: Simulation::default(),
            };
            (simulator.computation(branch, 1.0), branch)
        });
        let longest = timed.max_by(|a, b| a.0.total_cmp(&b.0));
        longest.map_or(0.0, |(_, branch)| self.computation(branch, times))
    }

    fn compute(&mut self, instruction: &Instruction, owner: &Owner, times: f64, clock: &mut Clock) {
        if is_start(instruction) {
            let (route, bytes) = cost::copied(self.module, instruction);
            let free = clock.copies.entry(route).or_default();
            let done = clock.now.max(*free) + bytes as f64 / self.rate(route);
            *free = done;
            clock.started.insert(instruction.id, (done, None));
            return;
        }
        let seconds = cost::seconds(self.module, instruction, self.machine);
        clock.now += seconds;
        self.add(owner, times * seconds, 0.0);
    }

    /// Bytes per second of copies. Where the rate to the host is not known, it does not count.
    fn rate(&self, route: Route) -> f64 {
        let chip = &self.machine.chip;
        match route {
            Route::Device => chip.bandwidth,
            Route::ToHost | Route::FromHost => chip.host_link.unwrap_or(chip.bandwidth),
        }
    }

    /// A collective: a synchronous one, an async start, or one of several instructions of a chain.
    fn collective(
        &mut self,
        (instruction, owner, times): (&Instruction, &Owner, f64),
        found: &Collective,
        last: bool,
        clock: &mut Clock,
    ) {
        let in_flight = found.chain.as_ref().and_then(|chain| clock.chains.get(chain)).copied();
        let (done, started) = in_flight.unwrap_or_else(|| {
            let (phases, started) = self.row(instruction, found, times);
            (clock.occupy(&phases), started)
        });
        if let Some(chain) = &found.chain {
            clock.chains.insert(chain.clone(), (done, started));
            let seconds = cost::seconds(self.module, instruction, self.machine);
            clock.now += seconds;
            self.add(owner, times * seconds, 0.0);
            if last {
                self.wait(done, started, owner, times, clock);
            }
        } else if found.asynchronous {
            clock.started.insert(instruction.id, (done, Some(started)));
        } else {
            self.wait(done, started, owner, times, clock);
        }
    }

    /// The done of an asynchronous operation.
    fn end(
        &mut self,
        computation: &Computation,
        instruction: &Instruction,
        owner: &Owner,
        times: f64,
        clock: &mut Clock,
    ) {
        let Some(start) = start_of(computation, instruction) else { return };
        match clock.started.remove(&start) {
            Some((done, Some(started))) => self.wait(done, started, owner, times, clock),
            Some((done, None)) => {
                let waited = (done - clock.now).max(0.0);
                clock.now += waited;
                self.add(owner, times * waited, 0.0);
            }
            None => {}
        }
    }

    /// Waits for a collective.
    fn wait(&mut self, done: f64, started: Started, owner: &Owner, times: f64, clock: &mut Clock) {
        let waited = (done - clock.now).max(0.0);
        // Synchronous collectives hide nothing, except for rounding.
        let hidden = started.seconds - waited;
        let hidden = if hidden > 1e-9 * started.seconds { hidden } else { 0.0 };
        clock.now += waited;
        self.add(owner, 0.0, times * waited);
        self.simulation.time.contention += times * (waited - started.seconds).max(0.0);
        self.simulation.time.hidden += times * hidden;
        self.simulation.collective_times[started.row].hidden += times * hidden;
    }

    /// Adds a collective to the row of its kind, group and size.
    fn row(
        &mut self,
        instruction: &Instruction,
        found: &Collective,
        times: f64,
    ) -> (Vec<Phase>, Started) {
        let members = self.members(&found.members);
        let bytes = found.bytes.unwrap_or(0);
        let network = &self.machine.network;
        let streams = instruction.algorithm().and_then(|algorithm| {
            let Algorithm { name, streams } = algorithm;
            self.simulation.algorithms.insert((found.kind, name, streams));
            streams.filter(|&streams| streams > 1)
        });
        let span = network.span(&members);
        let phases = match streams {
            Some(_) => network.rotated().phases(found.kind, bytes, &members),
            None => network.phases(found.kind, bytes, &members),
        };
        let seconds = phases.iter().map(|phase| phase.seconds).sum::<f64>();
        let new = CollectiveTime {
            kind: found.kind.to_string(),
            axis: axes_of(self.mesh, &members),
            group: members.len(),
            islands: span.islands,
            dims: span.dims(),
            count: 0,
            bytes,
            seconds: 0.0,
            hidden: 0.0,
        };
        let rows = &mut self.simulation.collective_times;
        let row = rows.iter().position(|row| row.is_like(&new)).unwrap_or_else(|| {
            rows.push(new);
            rows.len() - 1
        });
        rows[row].count += times as u64;
        rows[row].seconds += times * seconds;
        (phases, Started { row, seconds })
    }

    /// The devices of a group of a collective.
    fn members(&self, members: &Members) -> Vec<usize> {
        let network = &self.machine.network;
        match members {
            Members::All => (0..self.machine.devices).collect(),
            Members::Group(group) | Members::OnePerProcess(group) => group.clone(),
            Members::OnePerSlice(slices) => {
                let slices = slices.unwrap_or_else(|| network.islands());
                (0..slices).map(|slice| slice * network.island).collect()
            }
        }
    }

    fn add(&mut self, owner: &Owner, compute: f64, exposed: f64) {
        let time = &mut self.simulation.time;
        time.compute += compute;
        time.exposed += exposed;
        let like = |row: &ModuleTime| row.module == owner.module && row.backward == owner.backward;
        let row = time.modules.iter().position(like).unwrap_or_else(|| {
            let Owner { module, backward } = owner.clone();
            time.modules.push(ModuleTime { module, backward, compute: 0.0, exposed: 0.0 });
            time.modules.len() - 1
        });
        time.modules[row].compute += compute;
        time.modules[row].exposed += exposed;
    }
}

/// The last instruction of each chain that performs a collective.
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

/// Whether it starts an asynchronous operation.
fn is_start(instruction: &Instruction) -> bool {
    instruction.opcode.ends_with("-start")
}

/// Whether it ends one.
pub(super) fn is_end(instruction: &Instruction) -> bool {
    instruction.opcode.ends_with("-done") || instruction.opcode == "async-update"
}

/// The start that belongs to a done. An `async-update` has none.
fn start_of(computation: &Computation, end: &Instruction) -> Option<InstructionId> {
    if end.opcode == "async-update" {
        return None;
    }
    let mut start = computation.operands(end).next()?;
    while start.opcode == "async-update" {
        start = computation.operands(start).next()?;
    }
    Some(start.id)
}
