//! Finds the smallest request to which two servers still give different answers.

use super::compare::{Compared, Servers};
use super::probe::{Over, Parameter, Probe};

/// The maximum number of requests for one difference.
const TRIES_MAX: usize = 150;

/// Returns the smallest request that was found, and its answers.
pub async fn shrink(servers: &Servers, probe: Probe, compared: Compared, settled: u64) -> (Probe, Compared) {
    let mut smallest = (probe, compared);
    let mut tries = 0;
    'smaller: loop {
        for candidate in smaller(&smallest.0) {
            if tries == TRIES_MAX {
                return smallest;
            }
            tries += 1;
            let compared = servers.compare(&candidate, settled).await;
            if compared.differs() {
                smallest = (candidate, compared);
                continue 'smaller;
            }
        }
        return smallest;
    }
}

/// Simpler requests, the simplest first. None of them writes unless this one does, and each has a timeout if this one
/// has.
fn smaller(probe: &Probe) -> Vec<Probe> {
    let with = |change: &dyn Fn(&mut Probe)| {
        let mut smaller = probe.clone();
        change(&mut smaller);
        smaller
    };
    let mut all = Vec::new();
    if probe.over == Over::H2 {
        all.push(with(&|probe| probe.over = Over::H1));
    }
    for at in (0..probe.query.len()).filter(|at| !keeps(&probe.query[*at])) {
        all.push(with(&|probe| drop(probe.query.remove(at))));
    }
    for at in (0..probe.headers.len()).filter(|at| probe.headers[*at].0 != "content-type") {
        all.push(with(&|probe| drop(probe.headers.remove(at))));
    }
    for (at, parameter) in probe.query.iter().enumerate() {
        let Parameter::Value(name, value) = parameter else { continue };
        if keeps(parameter) {
            continue;
        }
        for value in pieces(value) {
            all.push(with(&|probe| probe.query[at] = Parameter::Value(name, value.clone())));
        }
    }
    for (at, (name, value)) in probe.headers.iter().enumerate() {
        for value in pieces(value) {
            all.push(with(&|probe| probe.headers[at] = (name, value.clone())));
        }
    }
    all.sort_by_key(|probe| probe.over);
    all
}

/// Without these parameters a dry run would be a real write, and a watch would not end.
fn keeps(parameter: &Parameter) -> bool {
    ["dryRun", "timeoutSeconds"].iter().any(|name| parameter.is(name))
}

/// The list without each of its items, and the item without each of its parameters.
fn pieces(value: &str) -> Vec<String> {
    let split = |separator: char| {
        let items: Vec<_> = value.split(separator).collect();
        let without = move |at: usize| {
            let kept = items.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, item)| *item);
            kept.collect::<Vec<_>>().join(&separator.to_string())
        };
        (0..value.split(separator).count()).map(without).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for separator in [',', ';'] {
        if value.contains(separator) {
            all.extend(split(separator).into_iter().filter(|smaller| !smaller.is_empty()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrunk_requests_are_smaller_and_keep_dry_run_and_timeout() {
        let value = |name, value: &str| Parameter::Value(name, value.to_owned());
        let query = vec![value("dryRun", "All"), value("timeoutSeconds", "1"), value("labelSelector", "a,b")];
        let (path, body, headers) = ("/x".to_owned(), String::new(), vec![("accept", "a;q=1,b".to_owned())]);
        let probe = Probe { method: "DELETE", path, query, headers, body, over: Over::H2 };
        let found = smaller(&probe);
        assert!(
            found.iter().all(|smaller| *smaller != probe && smaller.query.iter().filter(|it| keeps(it)).count() == 2)
        );
        assert!(found.iter().any(|smaller| smaller.first("labelSelector").is_none()));
        assert!(found.iter().any(|smaller| smaller.first("labelSelector") == Some("b")));
        assert!(found.iter().any(|smaller| smaller.headers == [("accept", "a;q=1".to_owned())]));
        assert_eq!(found[0].over, Over::H1);
    }
}
