use serde_json::{Map, Value};

use super::plan::{BenchPlan, BenchPlanErrors};

/// One of the plans that a benchmark scenario compares.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ScenarioVariant {
    /// The name of the variant; empty if there is only one.
    pub name: String,
    pub plan: BenchPlan,
}

/// A named set of plans. Its keys are those of a [`BenchPlan`], and `variants`: a list of such keys with a `name` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BenchScenario {
    pub name: String,
    keys: Map<String, Value>,
    variants: Vec<Map<String, Value>>,
}

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../benches/scenarios/", $name, ".yaml")))),*]
    };
}

/// The built-in scenarios: their names, and their files.
pub const SCENARIOS: [(&str, &str); 27] = embedded!(
    "fifty-thousand",
    "gentle-go",
    "gentle-h1",
    "gentle",
    "gzip-watch-list",
    "gzip",
    "idle-15000",
    "idle-own",
    "idle-shared",
    "join-storm",
    "kubelets-5000",
    "list-json",
    "list-protobuf",
    "list-storm",
    "nonmatching-label",
    "nonmatching-name",
    "nonmatching-namespace",
    "nonmatching-node",
    "pass-through",
    "pods-165000",
    "resume-storm",
    "saturated-own-go",
    "saturated-own",
    "saturated-shared-go",
    "saturated-shared",
    "slow-watcher-tax",
    "stuck",
);

impl BenchScenario {
    /// Returns a scenario that is built into the program.
    pub fn embedded(name: &str) -> Option<Result<Self, BenchPlanErrors>> {
        let (name, text) = SCENARIOS.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(name, text))
    }

    /// Parses a user's scenario file.
    ///
    /// # Errors
    /// If it is not YAML, or does not have the form of a scenario.
    pub fn parse(name: &str, text: &str) -> Result<Self, BenchPlanErrors> {
        let fail = |why: String| BenchPlanErrors(vec![format!("scenario {name}: {why}")]);
        let Value::Object(mut keys) = serde_saphyr::from_str(text).map_err(|error| fail(error.to_string()))? else {
            return Err(fail("expected keys and values".to_owned()));
        };
        let variants = match keys.remove("variants") {
            None => Vec::new(),
            Some(variants) => serde_json::from_value(variants).map_err(|error| fail(format!("variants: {error}")))?,
        };
        Ok(Self { name: name.to_owned(), keys, variants })
    }

    /// Returns the scenario's description in one line.
    pub fn about(&self) -> &str {
        self.keys.get("about").and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the scenario's plans, overridden by `flags`.
    ///
    /// # Errors
    /// Every problem of any of the plans.
    pub fn plans(&self, flags: &Map<String, Value>) -> Result<Vec<ScenarioVariant>, BenchPlanErrors> {
        if self.variants.is_empty() {
            return Ok(vec![ScenarioVariant { name: String::new(), plan: BenchPlan::of_layers([&self.keys, flags])? }]);
        }
        let (mut plans, mut problems) = (Vec::new(), Vec::new());
        for keys in &self.variants {
            let mut keys = keys.clone();
            let name = keys.remove("name").and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
            if name.is_empty() {
                problems.push("a variant without a name".to_owned());
            }
            match BenchPlan::of_layers([&self.keys, &keys, flags]) {
                Ok(plan) => plans.push(ScenarioVariant { name, plan }),
                Err(wrong) => problems.extend(wrong.0.into_iter().map(|why| format!("variant {name}: {why}"))),
            }
        }
        if problems.is_empty() { Ok(plans) } else { Err(BenchPlanErrors(problems)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_valid_and_has_a_description() {
        for (name, _) in SCENARIOS {
            let scenario = BenchScenario::embedded(name).unwrap().unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            assert!(scenario.about().len() > 10, "{name}");
            let plans = scenario.plans(&Map::new()).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            assert!(!plans.is_empty());
        }
    }

    #[test]
    fn every_scenario_file_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/scenarios");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = files.collect();
        names.sort();
        assert_eq!(names, SCENARIOS.map(|(name, _)| format!("{name}.yaml")));
    }

    #[test]
    fn flags_override_variants_and_variants_override_the_scenario() {
        let text = "watches: 5\nobjects: 7\nvariants:\n- name: a\n- {name: b, watches: 6, rate: max}\n";
        let scenario = BenchScenario::parse("x", text).unwrap();
        let flags = serde_json::json!({"objects": 8});
        let plans = scenario.plans(flags.as_object().unwrap()).unwrap();
        let found: Vec<_> = plans.iter().map(|of| (of.name.as_str(), of.plan.watches, of.plan.objects)).collect();
        assert_eq!(found, [("a", 5, 8), ("b", 6, 8)]);
        let wrong = BenchScenario::parse("x", "variants:\n- {watches: many}\n- {name: c, colour: red}\n").unwrap();
        assert_eq!(wrong.plans(&Map::new()).unwrap_err().0.len(), 3);
        assert!(BenchScenario::parse("x", "- a\n").is_err());
    }
}
