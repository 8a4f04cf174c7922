//! The words of the demo, and which may follow which.

/// Classes of words. A sentence is a subject, a verb and one or more objects:
/// `the (old) fox finds some (red) boat (near that (tall) tree).`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Stop,
    SubjectArticle,
    Adjective,
    Agent,
    Verb,
    ObjectArticle,
    Thing,
    Preposition,
}

use Class::*;

const LEXICON: [(Class, &str); 8] = [
    (Stop, "."),
    (SubjectArticle, "the a every my your our"),
    (
        Adjective,
        "old young small big quiet happy clever brave lazy kind green red golden strange cold \
         bright",
    ),
    (
        Agent,
        "fox bear child sailor king farmer bird cat dog teacher girl boy wolf baker painter \
         giant mouse queen",
    ),
    (
        Verb,
        "finds sees loves paints builds carries hides follows brings wants keeps opens breaks \
         sells draws remembers",
    ),
    (ObjectArticle, "this that some one another his"),
    (
        Thing,
        "river stone house boat tree garden lamp bridge book song apple hill road box mirror \
         clock tower coat",
    ),
    (Preposition, "near under behind beside above with inside"),
];

/// All words with their classes; the index of a word is its token ID.
pub(super) struct Words {
    words: Vec<(Class, &'static str)>,
}

impl Words {
    pub(super) fn new() -> Self {
        let words = LEXICON
            .iter()
            .flat_map(|&(class, words)| words.split_whitespace().map(move |word| (class, word)))
            .collect();
        Self { words }
    }

    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    pub(super) fn text(&self, word: usize) -> &'static str {
        self.words[word].1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'static str> {
        self.words.iter().map(|(_, text)| *text)
    }

    /// The full stop.
    pub(super) const STOP: usize = 0;

    /// The grammar's weight of a word after two others; 0 if not allowed.
    pub(super) fn weight(&self, first: usize, second: usize, word: usize) -> f64 {
        let class = |word: usize| self.words[word].0;
        let next = class(word);
        let allowed = match class(second) {
            Stop => next == SubjectArticle,
            SubjectArticle => matches!(next, Adjective | Agent),
            Adjective if class(first) == ObjectArticle => next == Thing,
            Adjective => next == Agent,
            Agent => next == Verb,
            Verb | Preposition => next == ObjectArticle,
            ObjectArticle => matches!(next, Adjective | Thing),
            Thing => matches!(next, Preposition | Stop),
        };
        match (allowed, next) {
            (false, _) => 0.0,
            (true, Stop) => 15.0, // one word against seven, or sentences would not end
            (true, _) => 1.0,
        }
    }
}
