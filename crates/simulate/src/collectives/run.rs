//! The messages of a collective, on links that they share.

use super::passes::Pass;
use super::{Options, Simulation};
use crate::engine::Engine;
use std::collections::VecDeque;

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

#[derive(Debug, Clone, Copy)]
enum Event {
    Arrived(Message),
    /// A link that others wait for has sent a message.
    Free(u32),
}

/// A link: it sends one message at a time, and what waits for it takes turns.
#[derive(Debug, Clone)]
struct Link {
    /// When it has sent its message.
    free: f64,
    /// By stream, those of the chip itself and those on their way through.
    waiting: Vec<VecDeque<Message>>,
    /// Whose turn is next.
    turn: usize,
}

impl Link {
    /// The message whose turn it is.
    fn next(&mut self) -> Option<Message> {
        for _ in 0..self.waiting.len() {
            self.turn = (self.turn + 1) % self.waiting.len();
            if let Some(message) = self.waiting[self.turn].pop_front() {
                return Some(message);
            }
        }
        None
    }

    fn is_awaited(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }
}

/// Equal collectives at once, each of which has streams of passes.
pub struct Run {
    dims: Vec<usize>,
    chips: usize,
    link: f64,
    latency: f64,
    options: Options,
    /// The streams of one collective, all with the same number of passes. Streams are counted
    /// through one collective after another.
    streams: Vec<Vec<Pass>>,
    engine: Engine<Event>,
    /// Two directions of each dimension of each chip.
    links: Vec<Link>,
    /// Number of passes that each chip has begun, by collective.
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
        options: Options,
    ) -> Run {
        let chips = dims.iter().product();
        let all = options.together * streams.len();
        let passes = streams.first().map_or(0, Vec::len);
        let link_of = Link { free: 0.0, waiting: vec![VecDeque::new(); 2 * all], turn: 0 };
        Run {
            dims: dims.to_vec(),
            chips,
            link,
            latency,
            options,
            engine: Engine::default(),
            links: vec![link_of; chips * dims.len() * 2],
            begun: vec![0; chips * options.together],
            arrived: vec![vec![0; chips]; all * passes],
            held: vec![Vec::new(); chips * all],
            streams,
            messages: 0,
        }
    }

    pub fn run(mut self) -> Simulation {
        for chip in 0..self.chips {
            for collective in 0..self.options.together {
                self.go_on(collective, chip);
            }
        }
        while let Some(event) = self.engine.advance() {
            match event {
                Event::Arrived(message) => self.arrive(message),
                Event::Free(link) => self.send_next(link as usize),
            }
        }
        // Nothing ends later than the arrival of the last message.
        Simulation { seconds: self.engine.now(), messages: self.messages }
    }

    /// Begins the passes of a collective that a chip has everything for.
    fn go_on(&mut self, collective: usize, chip: usize) {
        let count = self.streams.len();
        let streams = collective * count..(collective + 1) * count;
        let place = collective * self.chips + chip;
        loop {
            let begun = usize::from(self.begun[place]);
            let is_done = |stream| begun == 0 || self.is_done(stream, begun - 1, chip);
            if begun == self.passes() || !streams.clone().all(is_done) {
                return;
            }
            self.begun[place] += 1;
            for stream in streams.clone() {
                self.begin(stream, begun, chip);
            }
        }
    }

    /// Whether a chip has all messages of a pass.
    fn is_done(&self, stream: usize, number: usize, chip: usize) -> bool {
        let pass = self.pass(stream, number);
        let expected = pass.expected(self.member(&pass, chip)) * self.options.chunks as u32;
        self.arrived[stream * self.passes() + number][chip] >= expected
    }

    /// Sends what a chip sends by itself in a pass, and the sums that waited for it.
    fn begin(&mut self, stream: usize, number: usize, chip: usize) {
        let pass = self.pass(stream, number);
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
                for _ in 0..self.options.chunks {
                    self.send(message, true);
                }
            }
        }
        let place = stream * self.chips + chip;
        let waiting = std::mem::take(&mut self.held[place]);
        for message in waiting {
            match usize::from(message.pass) <= number {
                true => self.send(message, false),
                false => self.held[place].push(message),
            }
        }
    }

    /// Sends a message over its next link, at once or when it is its turn. It is the chip's own or
    /// on its way through.
    fn send(&mut self, message: Message, own: bool) {
        let pass = self.pass(usize::from(message.stream), usize::from(message.pass));
        let number = (message.at as usize * self.dims.len() + pass.dim) * 2;
        let number = number + usize::from(message.forward);
        let link = &mut self.links[number];
        let awaited = link.is_awaited();
        link.waiting[2 * usize::from(message.stream) + usize::from(own)].push_back(message);
        if link.free <= self.engine.now() && !awaited {
            self.send_next(number);
        } else if !awaited {
            self.engine.at(link.free, Event::Free(number as u32));
        }
    }

    /// Sends the message whose turn it is over a link that is free.
    fn send_next(&mut self, number: usize) {
        let Some(message) = self.links[number].next() else { return };
        let pass = self.pass(usize::from(message.stream), usize::from(message.pass));
        let half = if pass.is_half(usize::from(message.hops)) { 0.5 } else { 1.0 };
        let bytes = half * pass.shard / self.options.chunks as f64;
        let sent = self.engine.now() + bytes / self.link;
        let link = &mut self.links[number];
        link.free = sent;
        if link.is_awaited() {
            self.engine.at(sent, Event::Free(number as u32));
        }
        self.messages += 1;
        let at = self.neighbor(message.at as usize, pass.dim, message.forward) as u32;
        let arriving = Message { at, links: message.links - 1, ..message };
        self.engine.at(sent + self.latency, Event::Arrived(arriving));
    }

    fn arrive(&mut self, mut message: Message) {
        if message.links > 0 {
            return self.send(message, false);
        }
        let (stream, number) = (usize::from(message.stream), usize::from(message.pass));
        let chip = message.at as usize;
        let pass = self.pass(stream, number);
        message.hops -= 1;
        message.links = pass.stride as u16;
        if message.hops > 0 {
            let begun = self.begun[stream / self.streams.len() * self.chips + chip];
            match pass.scatter && usize::from(begun) <= number {
                true => self.held[stream * self.chips + chip].push(message),
                false => self.send(message, false),
            }
        }
        if message.hops == 0 || !pass.scatter {
            let passes = self.passes();
            self.arrived[stream * passes + number][chip] += 1;
            self.go_on(stream / self.streams.len(), chip);
        }
    }

    /// Number of passes of every stream.
    fn passes(&self) -> usize {
        self.streams.first().map_or(0, Vec::len)
    }

    fn pass(&self, stream: usize, number: usize) -> Pass {
        self.streams[stream % self.streams.len()][number]
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
