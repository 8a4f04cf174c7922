//! The time from the launch of a run to its first step, by what it was spent on.

use std::fmt;
use std::time::Duration;

/// The time from the launch of a run to the end of its first step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StartUp {
    /// Until all processes of the job were there.
    pub rendezvous: Duration,
    /// Finding files and tokenizing text, or reading the cached tokens.
    pub data: Duration,
    /// Compiling programs, or loading them.
    pub compile: Duration,
    /// Initializing weights, or reading them.
    pub weights: Duration,
    /// The first batch and step.
    pub first_step: Duration,
    /// All of it, and what is between.
    pub total: Duration,
}

impl StartUp {
    /// The parts, by their names in logs.
    fn parts(&self) -> [(&'static str, Duration); 5] {
        [
            ("rendezvous", self.rendezvous),
            ("data", self.data),
            ("compile", self.compile),
            ("weights", self.weights),
            ("first step", self.first_step),
        ]
    }
}

impl fmt::Display for StartUp {
    /// `start-up 6.1 s: rendezvous 0.1 s, data 0.3 s, ...`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |(name, time): (&str, Duration)| format!("{name} {:.2} s", time.as_secs_f64());
        let parts = self.parts().map(part).join(", ");
        write!(f, "start-up {:.2} s: {parts}", self.total.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_every_part() {
        let second = Duration::from_secs(1);
        let start_up = StartUp { compile: second, total: 2 * second, ..StartUp::default() };
        let text = start_up.to_string();
        assert!(text.starts_with("start-up 2.00 s: rendezvous 0.00 s"), "{text}");
        assert!(text.contains("compile 1.00 s, weights 0.00 s, first step"), "{text}");
    }
}
