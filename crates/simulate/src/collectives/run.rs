//! The messages of a collective, on links that they share.

use super::Simulation;
use super::passes::Pass;
use crate::engine::Engine;

/// A shard, or a sum of shards, on its way.
#[derive(Debug, Clone, Copy)]
struct Message {
    /// The chip that it arrives at.
    at: u32,
    stream: u16,
    pass: u16,
    /// Members yet to reach, and links to the next of them.
    hops: u16,
    links: u16,
    forward: bool,
}

/// A collective, or several at once: streams of passes.
pub struct Run {
    dims: Vec<usize>,
    chips: usize,
    link: f64,
    latency: f64,
    chunks: usize,
    streams: Vec<Vec<Pass>>,
    engine: Engine<Message>,
    /// When each link is free: two directions of each dimension of each chip.
    free: Vec<f64>,
    /// The passes that each chip has begun, by stream.
    begun: Vec<u16>,
    /// Messages that each chip has, by stream and pass.
    arrived: Vec<Vec<u32>>,
    /// Sums that wait for a chip to have its own share of them, by stream and chip.
    held: Vec<Vec<Message>>,
    messages: u64,
}

impl Run {
    pub fn new(
        dims: &[usize],
        link: f64,
        latency: f64,
        streams: Vec<Vec<Pass>>,
        chunks: usize,
    ) -> Run {
        let chips = dims.iter().product();
        let passes = streams.iter().map(Vec::len).sum();
        Run {
            dims: dims.to_vec(),
            chips,
            link,
            latency,
            chunks,
            engine: Engine::default(),
            free: vec![0.0; chips * dims.len() * 2],
            begun: vec![0; chips * streams.len()],
            arrived: vec![vec![0; chips]; passes],
            held: vec![Vec::new(); chips * streams.len()],
            streams,
            messages: 0,
        }
    }

    pub fn run(mut self) -> Simulation {
        for chip in 0..self.chips {
            for stream in 0..self.streams.len() {
                self.go_on(stream, chip);
            }
        }
        while let Some(message) = self.engine.advance() {
            self.arrive(message);
        }
        // Nothing ends later than the arrival of the last message.
        Simulation { seconds: self.engine.now(), messages: self.messages }
    }

    /// Begins the passes that a chip has everything for.
    fn go_on(&mut self, stream: usize, chip: usize) {
        let place = stream * self.chips + chip;
        loop {
            let begun = usize::from(self.begun[place]);
            let passes = &self.streams[stream];
            if begun > 0 {
                let pass = passes[begun - 1];
                let expected = pass.expected(self.member(&pass, chip)) * self.chunks as u32;
                if self.arrived[self.index(stream, begun - 1)][chip] < expected {
                    return;
                }
            }
            let Some(&pass) = passes.get(begun) else { return };
            self.begun[place] += 1;
            self.begin(stream, begun, pass, chip);
        }
    }

    /// Sends what a chip sends by itself in a pass, and the sums that waited for it.
    fn begin(&mut self, stream: usize, number: usize, pass: Pass, chip: usize) {
        let member = self.member(&pass, chip);
        for forward in [true, false] {
            for hops in pass.origins(member, forward).rev() {
                let message = Message {
                    at: chip as u32,
                    stream: stream as u16,
                    pass: number as u16,
                    hops: hops as u16,
                    links: pass.stride as u16,
                    forward,
                };
                for _ in 0..self.chunks {
                    self.send(message);
                }
            }
        }
        let place = stream * self.chips + chip;
        let waiting = std::mem::take(&mut self.held[place]);
        for message in waiting {
            match usize::from(message.pass) <= number {
                true => self.send(message),
                false => self.held[place].push(message),
            }
        }
    }

    /// Sends a message over the next link, once that is free.
    fn send(&mut self, message: Message) {
        let pass = self.streams[usize::from(message.stream)][usize::from(message.pass)];
        let chip = message.at as usize;
        let half = if pass.is_half(usize::from(message.hops)) { 0.5 } else { 1.0 };
        let bytes = half * pass.shard / self.chunks as f64;
        let link = (chip * self.dims.len() + pass.dim) * 2 + usize::from(message.forward);
        let sent = self.free[link].max(self.engine.now()) + bytes / self.link;
        self.free[link] = sent;
        self.messages += 1;
        let at = self.neighbor(chip, pass.dim, message.forward) as u32;
        let arriving = Message { at, links: message.links - 1, ..message };
        self.engine.at(sent + self.latency, arriving);
    }

    fn arrive(&mut self, mut message: Message) {
        if message.links > 0 {
            return self.send(message);
        }
        let (stream, number) = (usize::from(message.stream), usize::from(message.pass));
        let chip = message.at as usize;
        let pass = self.streams[stream][number];
        message.hops -= 1;
        message.links = pass.stride as u16;
        if message.hops > 0 {
            let place = stream * self.chips + chip;
            match pass.scatter && usize::from(self.begun[place]) <= number {
                true => self.held[place].push(message),
                false => self.send(message),
            }
        }
        if message.hops == 0 || !pass.scatter {
            let index = self.index(stream, number);
            self.arrived[index][chip] += 1;
            self.go_on(stream, chip);
        }
    }

    /// The place of a stream's pass among all passes.
    fn index(&self, stream: usize, pass: usize) -> usize {
        self.streams[..stream].iter().map(Vec::len).sum::<usize>() + pass
    }

    fn member(&self, pass: &Pass, chip: usize) -> usize {
        pass.member(chip / self.below(pass.dim) % self.dims[pass.dim])
    }

    /// Chips from one to the next along a dimension.
    fn below(&self, dim: usize) -> usize {
        self.dims[..dim].iter().product()
    }

    fn neighbor(&self, chip: usize, dim: usize, forward: bool) -> usize {
        let (below, size) = (self.below(dim), self.dims[dim]);
        let at = chip / below % size;
        let next = if forward { (at + 1) % size } else { (at + size - 1) % size };
        chip - at * below + next * below
    }
}
