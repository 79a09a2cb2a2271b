use serde::Serialize;

use super::bench_options::BenchOptions;
use super::outcome::{BenchFigures, BenchRunOutcome, BetterDirection, CATALOGUE};
use super::process::MachineInfo;
use super::scenario::ScenarioVariant;

/// All measurements of a benchmark command, and the ratios between them.
#[derive(Clone, Debug, Serialize)]
pub struct BenchResults {
    pub scenario: String,
    pub about: String,
    pub command: Vec<String>,
    pub machine: MachineInfo,
    pub plans: Vec<ScenarioVariant>,
    pub outcomes: Vec<BenchRunOutcome>,
    /// The medians of all rounds, per variant and server.
    pub cells: Vec<VariantFigures>,
    pub ratios: Vec<FigureRatios>,
}

/// The figures of one plan variant against one server.
#[derive(Clone, Debug, Serialize)]
pub struct VariantFigures {
    pub variant: String,
    pub side: String,
    pub rounds: usize,
    pub figures: BenchFigures,
}

/// The ratios of one cell's figures to another's.
#[derive(Clone, Debug, Serialize)]
pub struct FigureRatios {
    /// The indexes of the two cells.
    pub of: usize,
    pub over: usize,
    pub figures: BenchFigures,
}

impl VariantFigures {
    pub(super) fn title(&self) -> String {
        match (self.side.as_str(), self.variant.as_str()) {
            (side, "") => side.to_owned(),
            (side, variant) => format!("{side} {variant}"),
        }
    }
}

impl BenchResults {
    pub(super) fn of(order: &BenchOptions, outcomes: Vec<BenchRunOutcome>) -> Self {
        let cells = cells(order, &outcomes);
        let ratios = ratios(&cells);
        Self {
            scenario: order.scenario.clone(),
            about: order.about.clone(),
            command: order.command.clone(),
            machine: MachineInfo::this(),
            plans: order.variants.clone(),
            outcomes,
            cells,
            ratios,
        }
    }

    /// Whether every watch of every run received every event exactly once.
    pub fn is_complete(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.interrupted || outcome.is_complete())
    }
}

fn cells(order: &BenchOptions, outcomes: &[BenchRunOutcome]) -> Vec<VariantFigures> {
    let mut cells = Vec::new();
    for variant in &order.variants {
        for side in &order.sides {
            let of_cell = |outcome: &&BenchRunOutcome| outcome.variant == variant.name && outcome.side == side.name;
            let runs: Vec<_> = outcomes.iter().filter(of_cell).collect();
            if runs.is_empty() {
                continue;
            }
            let mut figures = BenchFigures::default();
            for (name, ..) in CATALOGUE {
                let values: Vec<_> = runs.iter().filter_map(|outcome| outcome.figures.of(name)).collect();
                figures.put_some(name, median(values));
            }
            cells.push(VariantFigures {
                variant: variant.name.clone(),
                side: side.name.clone(),
                rounds: runs.len(),
                figures,
            });
        }
    }
    cells
}

/// Compares each side with the first of the same variant, and each variant with the first of the same side.
fn ratios(cells: &[VariantFigures]) -> Vec<FigureRatios> {
    let mut ratios = Vec::new();
    for (of, cell) in cells.iter().enumerate() {
        let same_variant = cells.iter().position(|other| other.variant == cell.variant);
        let same_side = cells.iter().position(|other| other.side == cell.side);
        let over = [same_variant, same_side].into_iter().flatten().filter(|over| *over != of);
        ratios.extend(over.map(|over| FigureRatios { of, over, figures: ratio(&cell.figures, &cells[over].figures) }));
    }
    ratios
}

fn ratio(of: &BenchFigures, over: &BenchFigures) -> BenchFigures {
    let mut figures = BenchFigures::default();
    for (name, _, better, _) in CATALOGUE.iter().filter(|(_, _, better, _)| *better != BetterDirection::Neither) {
        debug_assert_ne!(*better, BetterDirection::Neither);
        if let (Some(of), Some(over)) = (of.of(name), over.of(name).filter(|over| *over != 0.0)) {
            figures.put(name, of / over);
        }
    }
    figures
}

/// Returns the median; for an even number of values, the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_count_averages_the_middle_values() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    fn cell(variant: &str, side: &str, cpu: f64) -> VariantFigures {
        let mut figures = BenchFigures::default();
        figures.put("cpu_us_per_delivery", cpu);
        figures.put("missed", 0.0);
        figures.put("watches", 5.0);
        VariantFigures { variant: variant.to_owned(), side: side.to_owned(), rounds: 1, figures }
    }

    #[test]
    fn ratios_compare_sides_per_variant_and_variants_per_side() {
        let cells = [cell("few", "A", 8.0), cell("few", "B", 2.0), cell("many", "A", 16.0), cell("many", "B", 3.0)];
        let ratios = ratios(&cells);
        let found: Vec<_> = ratios
            .iter()
            .map(|ratio| (ratio.of, ratio.over, ratio.figures.of("cpu_us_per_delivery").unwrap()))
            .collect();
        assert_eq!(found, [(1, 0, 0.25), (2, 0, 2.0), (3, 2, 0.1875), (3, 1, 1.5)]);
        let of_nothing = |ratio: &FigureRatios| ratio.figures.of("missed").or(ratio.figures.of("watches"));
        assert!(ratios.iter().all(|ratio| of_nothing(ratio).is_none()), "nothing over nothing, and no counts");
    }
}
