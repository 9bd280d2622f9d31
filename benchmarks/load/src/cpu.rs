//! Processor time, as the kernel accounts it.
use std::collections::HashMap;
use std::fs;

/// Linux reports process times in ticks of 1/100 s on every architecture (USER_HZ).
const TICKS_PER_S: f64 = 100.0;

/// User and system seconds of these processes and of all that descend from them.
pub fn seconds(roots: &[u32]) -> f64 {
    let processes = processes();
    let mut pending = roots.to_vec();
    let mut counted: Vec<u32> = Vec::new();
    let mut ticks = 0;
    while let Some(pid) = pending.pop() {
        if counted.contains(&pid) {
            continue;
        }
        counted.push(pid);
        ticks += processes.get(&pid).map_or(0, |&(_, own)| own);
        pending.extend(processes.iter().filter(|(_, &(parent, _))| parent == pid).map(|(&p, _)| p));
    }
    ticks as f64 / TICKS_PER_S
}

/// pid -> (parent, ticks) of every process there is.
fn processes() -> HashMap<u32, (u32, u64)> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_string_lossy().parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((pid, parse(&stat)?))
        })
        .collect()
}

/// The fields after the name, which may itself hold blanks and parentheses.
fn parse(stat: &str) -> Option<(u32, u64)> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((fields.get(1)?.parse().ok()?, ticks(11)? + ticks(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let stat = "42 (a (b) c) S 7 1 1 0 -1 4194304 1 2 3 4 30 12 0 0 20 0 1 0 5";
        assert_eq!(parse(stat), Some((7, 42)));
        assert_eq!(parse("nonsense"), None);
    }
}
