//! Which modules the lists of a compressed-tensors config name.
//!
//! Matching is the library's (`compressed_tensors.utils.match`): a target is an exact module path,
//! `re:` and an expression that must match from the start of the path (Python's `re.match`), or the
//! name of a PyTorch class. Headers know no classes, so those are taken by what they usually hold.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use fancy_regex::{Regex, RegexBuilder};

/// Steps that one expression may backtrack on one path. Only expressions with lookaround or
/// backreferences backtrack at all, and honest ones need a few hundred.
const BACKTRACK_LIMIT: usize = 10_000;

/// Expressions that are used of each list. Published models have a few dozen; and every one is
/// tried on every quantized module.
const MAX_EXPRESSIONS: usize = 1000;

/// Bytes that one compiled expression may take. Honest ones need a few thousand.
const SIZE_LIMIT: usize = 1 << 18;

/// Time that all expressions of a model may take together. Honest ones need milliseconds.
const MOST_TIME: Duration = Duration::from_secs(10);

/// A list of targets, sorted by kind; each belongs to the group of that index.
#[derive(Default)]
pub(super) struct Targets {
    exact: HashMap<String, usize>,
    pub(super) classes: Classes,
    /// By text: of several that match, the library takes the first in this order.
    expressions: BTreeMap<String, Expression>,
    /// Expressions beyond [`MAX_EXPRESSIONS`].
    left_out: usize,
}

impl Targets {
    /// Adds a target of `group`; of several groups that name the same one the last has it.
    pub(super) fn add(&mut self, target: &str, group: usize, effort: &Effort) {
        let Some(text) = target.strip_prefix("re:") else {
            self.exact.insert(target.to_string(), group);
            self.classes.add(target, group);
            return;
        };
        let full = self.expressions.len() >= MAX_EXPRESSIONS;
        match self.expressions.get_mut(text) {
            Some(same) => same.group = group,
            None if full => self.left_out += 1,
            None => {
                let regex = effort.timed(|| compile(text));
                let regex = regex.and_then(|compiled| {
                    let unusable = |e| effort.note(format!("'re:{text}' is not used: {e}"));
                    compiled.map_err(unusable).ok()
                });
                let regex = RefCell::new(regex);
                self.expressions
                    .insert(text.to_string(), Expression { group, regex });
            }
        }
    }

    /// Says that expressions of the config's `list` are left out, if any are.
    pub(super) fn note_left_out(&self, list: &str, effort: &Effort) {
        if self.left_out > 0 {
            effort.note(format!(
                "of {} 're:' entries in {list} only the first {MAX_EXPRESSIONS} are used; name the modules instead",
                MAX_EXPRESSIONS + self.left_out
            ));
        }
    }

    /// The group of the exact path, else of the first expression that matches it.
    pub(super) fn find(&self, path: &str, effort: &Effort) -> Option<usize> {
        if let Some(group) = self.exact.get(path) {
            return Some(*group);
        }
        if self.expressions.is_empty() {
            return None;
        }
        let matching = || {
            let mut all = self.expressions.iter();
            all.find(|(text, e)| e.matches(text, path, effort))
        };
        effort.timed(matching).flatten().map(|(_, e)| e.group)
    }
}

/// Targets that may be class names. What headers tell of classes is whether they fit an embedding
/// or another matrix, so of each kind only one counts: the first in the order of their names.
#[derive(Default)]
pub(super) struct Classes {
    embedding: Option<(String, usize)>,
    linear: Option<(String, usize)>,
    other: Option<(String, usize)>,
}

impl Classes {
    fn add(&mut self, target: &str, group: usize) {
        if !target.starts_with(|c: char| c.is_ascii_uppercase()) || target.contains('.') {
            return;
        }
        let kind = match () {
            () if target.contains("Embedding") => &mut self.embedding,
            () if target.contains("Linear") => &mut self.linear,
            () => &mut self.other,
        };
        if kind
            .as_ref()
            .is_none_or(|(name, _)| target <= name.as_str())
        {
            *kind = Some((target.to_string(), group));
        }
    }

    /// The group of the class name that fits a matrix at `path` best. Embeddings are told by their
    /// names; `any` says whether a class that is neither `…Linear` nor an embedding (of which
    /// headers tell nothing) counts as well.
    pub(super) fn find(&self, path: &str, any: bool) -> Option<usize> {
        let last = path.rsplit('.').next().unwrap_or(path);
        let is_embedding = last.contains("emb") || matches!(last, "wte" | "wpe");
        let embedding = self.embedding.as_ref().filter(|_| is_embedding);
        let other = self.other.as_ref().filter(|_| any);
        let best = embedding.or(self.linear.as_ref()).or(other);
        best.map(|(_, group)| *group)
    }
}

/// An expression of Python's `re`, matched from the start of a path.
struct Expression {
    group: usize,
    /// `None`: this engine cannot compile it, or it once ran past [`BACKTRACK_LIMIT`]. Then it
    /// counts as not matching.
    regex: RefCell<Option<Regex>>,
}

fn compile(text: &str) -> Result<Regex, fancy_regex::Error> {
    RegexBuilder::new(&format!(r"\A(?:{text})"))
        .backtrack_limit(BACKTRACK_LIMIT)
        .delegate_size_limit(SIZE_LIMIT)
        .delegate_dfa_size_limit(SIZE_LIMIT)
        .build()
}

impl Expression {
    fn matches(&self, text: &str, path: &str, effort: &Effort) -> bool {
        let answer = match &*self.regex.borrow() {
            None => return false,
            Some(regex) => regex.is_match(path),
        };
        answer.unwrap_or_else(|e| {
            effort.note(format!("'re:{text}' is not used: {e} on '{path}'"));
            *self.regex.borrow_mut() = None;
            false
        })
    }
}

/// What expressions have cost, and what is to be said of them.
#[derive(Default)]
pub(super) struct Effort {
    spent: Cell<Duration>,
    notes: RefCell<Vec<String>>,
}

impl Effort {
    /// Does `work`, unless expressions have had their time.
    fn timed<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if self.spent.get() >= MOST_TIME {
            return None;
        }
        let start = Instant::now();
        let done = work();
        self.spent.set(self.spent.get() + start.elapsed());
        if self.spent.get() >= MOST_TIME {
            self.note(format!(
                "no 're:' target is used any more: they took {} s; name the modules instead",
                MOST_TIME.as_secs()
            ));
        }
        Some(done)
    }

    /// What a person should know: which expressions are not used, and why.
    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    fn note(&self, what: String) {
        self.notes
            .borrow_mut()
            .push(format!("compressed-tensors config: {what}"));
    }
}
