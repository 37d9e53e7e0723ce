//! Regular expressions in model configs, as Python's `re` matches them, within a budget of steps.
//!
//! A hostile config may contain expressions that are slow to compile or to match, and a model may
//! have 100,000 modules to try each on. So the work is counted in steps that depend only on the
//! config and the names: a config selects the same layers on every machine, however busy.
//!
//! Nearly every expression compiles to a table of states for ASCII paths, where each byte of the
//! path is a step. Others (lookaround, backreferences, tables that grow too large, non-ASCII paths)
//! are matched by `fancy_regex`, which reports only whether it backtracked more often than a limit.
//! So these cost as many steps as the limit allows, and are tried with small limits first.

use std::cell::{Cell, OnceCell, RefCell};

use fancy_regex::{Regex, RegexBuilder};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};

/// Steps that all expressions of a model may take together. With twice this budget 20,000 expressions
/// of several kinds took 1 to 14 seconds on 94,000 modules (a test build on a busy machine). 40 ordinary
/// expressions take 0.6 billion steps there.
const MOST_STEPS: u64 = 2_000_000_000;

/// Bytes that one compiled expression may take. Ordinary ones need a few thousand.
const SIZE_LIMIT: usize = 1 << 18;
/// Bytes that the sets behind a table's states may take while it is built.
const SETS_LIMIT: usize = 1 << 16;
/// Steps for building each byte of a table. A table that exceeds the limits costs up to 5 ms.
const BUILD_STEPS: u64 = 32;

/// Steps for each match of a table, besides the path's bytes, because the table is seldom in the
/// cache.
const CALL_STEPS: u64 = 100;
/// Steps for each match of `fancy_regex`, and for each byte of the path.
const SLOW_CALL_STEPS: u64 = 500;
const SLOW_STEPS: u64 = 16;
/// How often an expression may backtrack on one path. If the first limit does not suffice, the next
/// is tried. Ordinary ones need a few hundred at most; nearly all need none.
const BACKTRACK_LIMITS: [usize; 3] = [32, 512, 10_000];
/// Steps for each time that an expression may backtrack.
const BACKTRACK_STEPS: u64 = 10;

/// An expression of Python's `re`, matched from the start of a path.
pub(crate) struct Expression {
    text: String,
    /// For ASCII paths, if it can be built.
    table: Option<dense::DFA<Vec<u32>>>,
    /// The same expression with each of [`BACKTRACK_LIMITS`], compiled when it is first needed.
    slow: [OnceCell<Option<Regex>>; BACKTRACK_LIMITS.len()],
    /// It cannot be compiled either way, or backtracked too often once. It then counts as not
    /// matching.
    unusable: Cell<bool>,
}

impl Expression {
    /// Compiles it, as far as the budget allows.
    pub fn new(text: &str, effort: &Effort) -> Expression {
        let expression = Expression {
            text: text.to_string(),
            table: table(text, effort),
            slow: Default::default(),
            unusable: Cell::new(false),
        };
        // Report an expression that cannot be compiled at all right away.
        if expression.table.is_none() {
            expression.slow(0, effort);
        }
        expression
    }

    /// Whether it matches from the start of `path`, as far as the budget allows.
    pub fn matches(&self, path: &str, effort: &Effort) -> bool {
        if self.unusable.get() {
            return false;
        }
        let Some(table) = self.table.as_ref().filter(|_| path.is_ascii()) else {
            return self.matches_slowly(path, effort);
        };
        if !effort.spend(path.len() as u64 + CALL_STEPS) {
            return false;
        }
        let input = Input::new(path).anchored(Anchored::Yes).earliest(true);
        match table.try_search_fwd(&input) {
            Ok(found) => found.is_some(),
            // Cannot happen: the table has no bytes at which it gives up.
            Err(_) => false,
        }
    }

    fn matches_slowly(&self, path: &str, effort: &Effort) -> bool {
        let bytes = path.len() as u64 * SLOW_STEPS + SLOW_CALL_STEPS;
        for (attempt, limit) in BACKTRACK_LIMITS.into_iter().enumerate() {
            let Some(regex) = self.slow(attempt, effort) else {
                return false;
            };
            if !effort.spend(bytes + limit as u64 * BACKTRACK_STEPS) {
                return false;
            }
            match regex.is_match(path) {
                Ok(matches) => return matches,
                Err(_) if limit < BACKTRACK_LIMITS[BACKTRACK_LIMITS.len() - 1] => {}
                Err(e) => self.leave_out(&format!("{e} on '{path}'"), effort),
            }
        }
        false
    }

    /// The expression with the limit number `attempt`. `None` if it cannot be compiled.
    fn slow(&self, attempt: usize, effort: &Effort) -> Option<&Regex> {
        let compiled = self.slow[attempt].get_or_init(|| {
            if !effort.spend(SIZE_LIMIT as u64) {
                return None;
            }
            RegexBuilder::new(&anchored(&self.text))
                .backtrack_limit(BACKTRACK_LIMITS[attempt])
                .delegate_size_limit(SIZE_LIMIT)
                .delegate_dfa_size_limit(SIZE_LIMIT)
                .build()
                .map_err(|e| self.leave_out(&e.to_string(), effort))
                .ok()
        });
        compiled.as_ref()
    }

    fn leave_out(&self, why: &str, effort: &Effort) {
        self.unusable.set(true);
        let prefix = effort.wording.prefix;
        effort.note(format!("'{prefix}{}' is not used: {why}", self.text));
    }
}

fn anchored(text: &str) -> String {
    format!(r"\A(?:{text})")
}

/// The expression as a table of states over bytes. It is only for ASCII paths, where classes such
/// as `\w` need a hundredth of the states.
fn table(text: &str, effort: &Effort) -> Option<dense::DFA<Vec<u32>>> {
    if !text.is_ascii() || !effort.spend(text.len() as u64 * BUILD_STEPS) {
        return None;
    }
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        .dfa_size_limit(Some(SIZE_LIMIT))
        .determinize_size_limit(Some(SETS_LIMIT));
    let built = dense::Builder::new()
        .configure(config)
        .syntax(syntax::Config::new().unicode(false).utf8(false))
        .thompson(thompson::Config::new().nfa_size_limit(Some(SIZE_LIMIT)))
        .build(&anchored(text));
    let size = match &built {
        Ok(table) => table.memory_usage(),
        Err(e) if e.is_size_limit_exceeded() => SIZE_LIMIT,
        // Syntax that tables do not support, which is detected immediately.
        Err(_) => 0,
    };
    effort.spend(size as u64 * BUILD_STEPS);
    built.ok()
}

/// How remarks name a config's expressions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wording {
    /// The config that they are in.
    pub config: &'static str,
    /// What stands before each of them there.
    pub prefix: &'static str,
    /// All of them.
    pub all: &'static str,
}

/// What expressions have cost so far, and remarks about them.
pub(crate) struct Effort {
    wording: Wording,
    spent: Cell<u64>,
    notes: RefCell<Vec<String>>,
}

impl Effort {
    /// A whole budget.
    pub fn new(wording: Wording) -> Effort {
        Effort {
            wording,
            spent: Cell::default(),
            notes: RefCell::default(),
        }
    }

    /// Takes steps from the budget. `false` if it is used up; then the work must not be done.
    fn spend(&self, steps: u64) -> bool {
        let spent = self.spent.get();
        if spent >= MOST_STEPS {
            return false;
        }
        self.spent.set(spent.saturating_add(steps));
        if self.spent.get() >= MOST_STEPS {
            let all = self.wording.all;
            self.note(format!(
                "{all} are no longer used: they took too many steps; name the modules instead"
            ));
        }
        true
    }

    /// Remarks for the user: which expressions are not used, and why.
    pub fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    pub fn note(&self, what: String) {
        self.notes
            .borrow_mut()
            .push(format!("{}: {what}", self.wording.config));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effort() -> Effort {
        Effort::new(Wording {
            config: "config",
            prefix: "",
            all: "its expressions",
        })
    }

    /// Both ways of matching give the same answer.
    #[test]
    fn tables_match_what_the_library_matches() {
        let paths = [
            "model.layers.7.self_attn.q_proj",
            "model.layers.12.mlp.experts.3.down_proj",
            "lm_head",
            "",
            "model.vision.blocks.0.attn",
            "Model.Layers.7.MLP",
        ];
        let texts = [
            "",
            ".*",
            "model",
            "layers",
            "lm_head$",
            r".*\.\d+\.self_attn\.(q|k|v)_proj$",
            r"(?:model\.)?\w+\.[0-9]+\.\w+\.(q|k)_proj",
            r"(?i)model\.layers\.\d{1,2}\.mlp",
            r"[^.]+\.[^.]+\.1\d\.",
            r".*\bmlp\b",
            "a|model|b",
            r"\S+experts\D",
        ];
        let effort = effort();
        for text in texts {
            let expression = Expression::new(text, &effort);
            assert!(expression.table.is_some(), "{text}");
            for path in paths {
                let slowly = expression.matches_slowly(path, &effort);
                assert_eq!(
                    expression.matches(path, &effort),
                    slowly,
                    "{text} on {path}"
                );
            }
        }
        assert_eq!(effort.notes(), Vec::<String>::new());
    }

    #[test]
    fn lookaround_and_other_alphabets_are_matched_too() {
        let effort = effort();
        let not_vision = Expression::new(r"^(?!.*vision)[\w.]+\.\d+\.mlp", &effort);
        assert!(not_vision.table.is_none());
        assert!(not_vision.matches("model.layers.3.mlp.up_proj", &effort));
        assert!(!not_vision.matches("vision.layers.3.mlp.up_proj", &effort));
        let word = Expression::new(r"\w+$", &effort);
        assert!(word.matches("überschrift", &effort));
        assert!(!word.matches("a.b", &effort));
    }

    /// Its work doubles with every character, so it exceeds any limit.
    const HOSTILE: &str = r"(?:(a+)\1*)+b";

    #[test]
    fn an_expression_that_backtracks_too_often_is_left_out_once() {
        let effort = effort();
        let slow = Expression::new(HOSTILE, &effort);
        let path = format!("{}!", "a".repeat(40));
        for _ in 0..3 {
            assert!(!slow.matches(&path, &effort));
        }
        assert_eq!(effort.notes().len(), 1, "{:?}", effort.notes());
        assert!(effort.notes()[0].contains("is not used"));
    }

    /// The same expressions on the same paths give the same answers and take the same number of
    /// steps, however fast the machine is.
    #[test]
    fn the_budget_counts_steps_and_not_time() {
        let run = |pause: bool| {
            let effort = effort();
            let texts = [r".*\.x\d+\.q_proj$", r"(?!.*y).*\.x7\.", HOSTILE];
            let all = texts.map(|text| Expression::new(text, &effort));
            let mut answers = Vec::new();
            for i in 0..200 {
                if pause && i % 50 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(30));
                }
                let path = format!("model.layers.x{i}.q_proj");
                answers.extend(all.iter().map(|e| e.matches(&path, &effort)));
            }
            (answers, effort.spent.get(), effort.notes())
        };
        assert_eq!(run(false), run(true));
    }

    #[test]
    fn nothing_is_matched_beyond_the_budget_and_one_note_says_so() {
        let effort = effort();
        let expression = Expression::new(".*", &effort);
        effort.spent.set(MOST_STEPS - 200);
        assert!(expression.matches("model.layers.0", &effort));
        assert!(expression.matches(&"a".repeat(60), &effort), "begun within");
        assert!(!expression.matches("a", &effort));
        assert!(!Expression::new("a", &effort).matches("a", &effort));
        assert_eq!(effort.notes().len(), 1, "{:?}", effort.notes());
    }

    /// The cost of the 94,000 modules of a large model with lists like those of published models.
    #[test]
    fn honest_configs_stay_far_within_the_budget() {
        let effort = effort();
        let texts = [
            r".*self_attn\.(q|k|v|o)_proj$",
            r".*mlp\.(gate|up|down)_proj$",
            r".*mlp\.experts\.\d+\.(gate|up|down)_proj$",
            "model.layers.[0-9]+.mlp.gate$",
            r"^(?!.*vision)[\w.]+\.\d+\.mlp\..*",
            "re:.*lm_head",
        ];
        let all = texts.map(|text| Expression::new(text, &effort));
        let modules = 1000;
        for i in 0..modules {
            let path = format!("model.layers.{}.mlp.experts.{i}.down_proj", i % 61);
            all.iter().for_each(|e| {
                e.matches(&path, &effort);
            });
        }
        let whole = effort.spent.get() / modules * 94_000;
        assert!(whole < MOST_STEPS / 2, "{whole} steps");
        assert_eq!(effort.notes(), Vec::<String>::new());
    }
}
