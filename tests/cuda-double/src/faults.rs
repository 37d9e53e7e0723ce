//! Every entry point begins here: counts the call, and fails or delays it if it was asked to.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use crate::SUCCESS;
use crate::world::{Code, current, lock, world};

/// `name`, which call (0: every), and the code or the milliseconds.
struct Rule {
    name: String,
    nth: u64,
    value: u64,
}

fn rules(variable: &str) -> Vec<Rule> {
    let text = std::env::var(variable).unwrap_or_default();
    let parse = |rule: &str| {
        let mut parts = rule.split(':');
        Some(Rule {
            name: parts.next()?.to_string(),
            nth: parts.next()?.parse().ok()?,
            value: parts.next()?.parse().ok()?,
        })
    };
    text.split(',')
        .filter(|rule| !rule.is_empty())
        .map(|rule| parse(rule).unwrap_or_else(|| panic!("{variable}: {rule}")))
        .collect()
}

struct Faults {
    fail: Vec<Rule>,
    ruin: Vec<Rule>,
    hang: Vec<Rule>,
    calls: Mutex<HashMap<&'static str, u64>>,
}

fn faults() -> &'static Faults {
    static FAULTS: OnceLock<Faults> = OnceLock::new();
    FAULTS.get_or_init(|| Faults {
        fail: rules("STFS_CUDA_DOUBLE_FAIL"),
        ruin: rules("STFS_CUDA_DOUBLE_RUIN"),
        hang: rules("STFS_CUDA_DOUBLE_HANG"),
        calls: Mutex::default(),
    })
}

/// The value of the first rule that this call meets.
fn met(rules: &[Rule], name: &str, nth: u64) -> Option<u64> {
    let meets = |r: &&Rule| r.name == name && (r.nth == 0 || r.nth == nth);
    rules.iter().find(meets).map(|r| r.value)
}

/// Runs an entry point.
pub fn enter(name: &'static str, body: impl FnOnce() -> Result<(), Code>) -> u32 {
    let guarded = catch_unwind(AssertUnwindSafe(|| {
        let faults = faults();
        let nth = {
            let mut calls = lock(&faults.calls);
            let count = calls.entry(name).or_default();
            *count += 1;
            *count
        };
        if let Some(milliseconds) = met(&faults.hang, name, nth) {
            std::thread::sleep(Duration::from_millis(milliseconds));
        }
        if let Some(code) = met(&faults.ruin, name, nth) {
            world().ruin(current()?, code as Code);
        }
        match met(&faults.fail, name, nth) {
            Some(code) => Err(code as Code),
            None => body(),
        }
    }));
    match guarded {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        // No unwinding into the caller: it may be C.
        Err(_) => std::process::abort(),
    }
}
