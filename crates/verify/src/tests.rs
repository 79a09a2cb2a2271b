//! Histories of whole runs: of a model that keeps every promise, and with one injected error.

mod acts;
mod model;
mod mutations;
mod spoiling;
mod verdicts;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::guarantee::ApiserverGuarantee;
use super::history::RunHistory;
use super::record::HistoryRecord;
use super::violation::GuaranteeViolation;

fn violations(records: &[HistoryRecord]) -> Vec<GuaranteeViolation> {
    let history = RunHistory::of(records.iter().cloned()).unwrap();
    history.judge_all().into_iter().flat_map(|judged| judged.violations).collect()
}

/// Uses the configured number of cases, with a minimum.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.max(500), ..config }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn correct_server_has_no_violations(acts in acts::acts()) {
        let model = model::run(&acts);
        let violations = violations(&model.records);
        prop_assert!(violations.is_empty(), "{violations:#?}\n{:#?}", model.records);
    }
}

/// Returns this many runs of the model, the same each time.
fn runs(count: usize) -> impl Iterator<Item = model::Model> {
    let mut runner = TestRunner::deterministic();
    let some = prop::collection::vec(acts::acts(), 2).prop_map(|acts| acts.concat());
    (0..count).map(move |_| model::run(&some.new_tree(&mut runner).unwrap().current()))
}

#[test]
fn model_runs_check_every_guarantee() {
    let mut instances = [0; ApiserverGuarantee::ALL.len()];
    for model in runs(60) {
        let history = RunHistory::of(model.records).unwrap();
        let judged = history.judge_all();
        instances.iter_mut().zip(judged).for_each(|(sum, judged)| *sum += judged.instances);
    }
    let rare: Vec<_> = ApiserverGuarantee::ALL.iter().zip(instances).filter(|(_, instances)| *instances < 60).collect();
    assert!(rare.is_empty(), "{rare:?}");
}

#[test]
fn every_mutation_is_detected_by_its_judge() {
    let mut found = vec![0; mutations::all().len()];
    for (seed, model) in (0..).zip(runs(150)) {
        for (found, (name, promise, mutation)) in found.iter_mut().zip(mutations::all()) {
            let random = fastrand::Rng::with_seed(seed);
            let mut spoiling = spoiling::Spoiling { model: &model, records: model.records.clone(), random };
            if mutation(&mut spoiling).is_none() {
                continue;
            }
            *found += 1;
            let records = spoiling.records;
            let judged = RunHistory::of(records.iter().cloned()).unwrap().judge(promise);
            assert!(judged.broken > 0, "{name}: seed {seed}, {:#?}", lines(&records));
        }
    }
    let rare: Vec<_> = mutations::all().into_iter().zip(found).filter(|(_, found)| *found < 10).collect();
    assert!(rare.is_empty(), "{rare:?}");
}

fn lines(records: &[HistoryRecord]) -> Vec<String> {
    records.iter().map(|record| serde_json::to_string(record).unwrap()).collect()
}
