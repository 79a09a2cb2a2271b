//! The rate of reviews of callers (docs/FORMS.md, "What a proxy costs the apiserver").

use std::time::Duration;

use serde::Serialize;

use super::CheckFinding;

/// What causes reviews: the tokens and the rights of open watches, and requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReviewedLoad {
    /// The number of tokens with open watches.
    pub tokens: f64,
    /// The number of open watches, each with a right of its own.
    pub watches: f64,
    /// Requests, including those that open watches, and new tokens, per second.
    pub requests: f64,
}

/// The times that the rate of reviews depends on.
#[derive(Debug, Clone, Copy)]
pub struct ReviewSettings {
    /// The longer of `delegated.recheck` and `delegated.recheckTokens`.
    pub recheck_tokens: Duration,
    pub recheck_rbac: Duration,
    pub compare_one_in: u32,
}

/// Reviews per second: of tokens, and of accesses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReviewRates {
    pub tokens: f64,
    pub accesses: f64,
}

/// The mean share of a period after which a lease is reviewed.
const PERIOD_MEAN: f64 = 0.9;
/// The mean duration of a client's watch: client-go asks for five to ten minutes.
const WATCH_MEAN: Duration = Duration::from_secs(450);
/// The share of its lifetime after which a kubelet replaces a token.
const TOKEN_USED: f64 = 0.8;
/// The lifetime of a pod's token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3_607);

impl ReviewedLoad {
    /// The load of agents with a token and a watch each, on every node.
    pub fn of_fleet(nodes: u64, agents: u64, token_lifetime: Duration) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let tokens = nodes as f64 * agents as f64;
        let per_second = 1.0 / WATCH_MEAN.as_secs_f64() + 1.0 / (TOKEN_USED * token_lifetime.as_secs_f64());
        Self { tokens, watches: tokens, requests: tokens * per_second }
    }

    /// Returns the reviews if upstream is asked for everything: at most one of each kind for a request, and those of open
    /// watches.
    pub fn asked(&self, settings: &ReviewSettings) -> ReviewRates {
        let ReviewSettings { recheck_tokens, recheck_rbac, .. } = settings;
        ReviewRates {
            tokens: self.requests + self.tokens / (PERIOD_MEAN * recheck_tokens.as_secs_f64()),
            accesses: self.requests + self.watches / (PERIOD_MEAN * recheck_rbac.as_secs_f64()),
        }
    }

    /// Returns the reviews that are left if all tokens are verified and all accesses are decided by the proxy: the
    /// compared ones. Open watches have no timers for decisions.
    pub fn compared(&self, settings: &ReviewSettings) -> ReviewRates {
        let share = if settings.compare_one_in == 0 { 0.0 } else { 1.0 / f64::from(settings.compare_one_in) };
        ReviewRates { tokens: share * self.asked(settings).tokens, accesses: share * self.requests }
    }
}

/// Reports the reviews of the callers of a fleet.
pub fn review_cost(nodes: u64, agents: u64, settings: &ReviewSettings) -> CheckFinding {
    let load = ReviewedLoad::of_fleet(nodes, agents, TOKEN_LIFETIME);
    let (asked, compared) = (load.asked(settings), load.compared(settings));
    let message = format!(
        "{nodes} × {agents} agents with a token and a watch: {:.2} TokenReviews/s and {:.2} SubjectAccessReviews/s with \
         identify and decide: ask; {:.3} and {:.3} with identify: local and decide: rbac",
        asked.tokens, asked.accesses, compared.tokens, compared.accesses
    );
    CheckFinding::ok("cost", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn review_rates_follow_from_tokens_watches_and_lifetimes() {
        let settings = |recheck, one_in| ReviewSettings {
            recheck_tokens: Duration::from_secs(recheck),
            recheck_rbac: Duration::from_secs(600),
            compare_one_in: one_in,
        };
        let hour = Duration::from_secs(3_600);
        for (nodes, agents, lifetime, settings, asked, compared) in [
            (0, 5, hour, settings(60, 1_000), [0.0, 0.0], [0.0, 0.0]),
            (1, 1, hour, settings(60, 1_000), [0.0211, 0.0044], [0.000_021, 0.000_003]),
            (2_000, 5, hour, settings(60, 1_000), [210.9, 44.2], [0.211, 0.026]),
            (2_000, 5, hour, settings(600, 1_000), [44.2, 44.2], [0.044, 0.026]),
            (2_000, 5, hour / 6, settings(60, 1_000), [228.2, 61.6], [0.228, 0.043]),
            (5_000, 10, hour, settings(60, 1_000), [1_054.4, 221.1], [1.054, 0.128]),
            (5_000, 10, hour, settings(60, 0), [1_054.4, 221.1], [0.0, 0.0]),
        ] {
            let load = ReviewedLoad::of_fleet(nodes, agents, lifetime);
            let found = [load.asked(&settings), load.compared(&settings)];
            for (found, expected) in found.into_iter().zip([asked, compared]) {
                let is_near = |found: f64, expected: f64| (found - expected).abs() <= 0.02 * expected + 0.000_001;
                assert!(
                    is_near(found.tokens, expected[0]) && is_near(found.accesses, expected[1]),
                    "{nodes} × {agents}, {lifetime:?}: {found:?}, expected {expected:?}"
                );
            }
        }
    }

    #[test]
    fn review_cost_names_both_modes() {
        let settings = ReviewSettings {
            recheck_tokens: Duration::from_secs(60),
            recheck_rbac: Duration::from_secs(600),
            compare_one_in: 1_000,
        };
        let message = review_cost(2_000, 5, &settings).message;
        assert!(message.contains("2000 × 5 agents") && message.contains(" TokenReviews/s"), "{message}");
    }
}
