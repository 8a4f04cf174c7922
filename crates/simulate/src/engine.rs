//! The engine: what happens next.
//!
//! Events are handed out by time, and those of the same time in the order in which they were
//! scheduled, so that a simulation is the same on every machine.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A clock and the events that are to come.
#[derive(Debug)]
pub struct Engine<E> {
    now: f64,
    scheduled: u64,
    queue: BinaryHeap<Entry<E>>,
}

#[derive(Debug)]
struct Entry<E> {
    time: f64,
    number: u64,
    event: E,
}

impl<E> Default for Engine<E> {
    fn default() -> Engine<E> {
        Engine { now: 0.0, scheduled: 0, queue: BinaryHeap::new() }
    }
}

impl<E> Engine<E> {
    /// Seconds since the start.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Number of events scheduled so far.
    pub fn scheduled(&self) -> u64 {
        self.scheduled
    }

    /// Schedules an event in `delay` seconds.
    pub fn after(&mut self, delay: f64, event: E) {
        self.at(self.now + delay, event);
    }

    /// Schedules an event at a time; at once, if that has passed.
    pub fn at(&mut self, time: f64, event: E) {
        let (time, number) = (time.max(self.now), self.scheduled);
        self.scheduled += 1;
        self.queue.push(Entry { time, number, event });
    }

    /// Advances the clock to the next event and returns it; nothing when there is none.
    pub fn advance(&mut self) -> Option<E> {
        let Entry { time, event, .. } = self.queue.pop()?;
        self.now = time;
        Some(event)
    }
}

/// A heap has its greatest first, so the earliest is the greatest.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.time.total_cmp(&self.time).then(other.number.cmp(&self.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_order() {
        let mut engine = Engine::default();
        for (delay, event) in [(2.0, 'c'), (1.0, 'a'), (2.0, 'd'), (1.0, 'b')] {
            engine.after(delay, event);
        }
        let mut order = String::new();
        while let Some(event) = engine.advance() {
            order.push(event);
            if event == 'a' {
                engine.after(0.5, 'x');
                engine.at(0.0, 'y');
            }
        }
        assert_eq!((order.as_str(), engine.now()), ("abyxcd", 2.0));
    }
}
