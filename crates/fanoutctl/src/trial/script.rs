use std::collections::VecDeque;
use std::str::FromStr;
use std::time::Duration;

/// An action of a trial's script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialAction {
    /// Kills and restarts the apiserver during a trial.
    Apiserver,
    /// Kills and restarts the proxy during a trial.
    Proxy,
    Quit,
}

/// The scheduled actions of a trial. Their times count from when all informers are synced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrialScript(VecDeque<(Duration, TrialAction)>);

const ACTIONS_MAX: usize = 1000;

impl TrialAction {
    /// Returns the action of a key.
    pub fn of_key(key: u8) -> Option<Self> {
        match key {
            b'a' => Some(Self::Apiserver),
            b'p' => Some(Self::Proxy),
            b'q' => Some(Self::Quit),
            _ => None,
        }
    }
}

impl TrialScript {
    /// Returns the time of the next action.
    pub fn next_at(&self) -> Option<Duration> {
        self.0.front().map(|(at, _)| *at)
    }

    pub fn take(&mut self) -> Option<TrialAction> {
        self.0.pop_front().map(|(_, action)| action)
    }
}

impl FromStr for TrialScript {
    type Err = String;

    /// Parses a script such as `5s apiserver, 10s proxy, 20s quit`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut actions = VecDeque::new();
        for part in text.split(',').map(str::trim) {
            let (at, action) = part
                .split_once(char::is_whitespace)
                .ok_or_else(|| format!("{part:?}: expected a time and an action, such as `5s apiserver`"))?;
            let at = humantime::parse_duration(at).map_err(|error| format!("{at:?}: {error}"))?;
            let action = match action.trim() {
                "apiserver" => TrialAction::Apiserver,
                "proxy" => TrialAction::Proxy,
                "quit" => TrialAction::Quit,
                other => return Err(format!("{other:?}: expected apiserver, proxy or quit")),
            };
            if actions.back().is_some_and(|(before, _)| at < *before) {
                return Err(format!("{part:?}: expected ascending times, but it is before the previous action"));
            }
            actions.push_back((at, action));
        }
        if actions.len() > ACTIONS_MAX {
            return Err(format!("{} actions; at most {ACTIONS_MAX} are allowed", actions.len()));
        }
        Ok(Self(actions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_parses_times_and_actions_in_order() {
        let mut script: TrialScript = "500ms apiserver,10s  proxy , 1m quit".parse().unwrap();
        let mut found = Vec::new();
        while let Some(at) = script.next_at() {
            found.push((at, script.take().unwrap()));
        }
        let seconds = Duration::from_secs;
        let expected = [
            (seconds(1) / 2, TrialAction::Apiserver),
            (seconds(10), TrialAction::Proxy),
            (seconds(60), TrialAction::Quit),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn invalid_script_is_rejected_with_the_reason() {
        for (text, word) in [
            ("", "expected a time"),
            ("5s", "expected a time"),
            ("soon quit", "soon"),
            ("5s etcd", "expected apiserver, proxy or quit"),
            ("5s proxy, 4s quit", "before"),
        ] {
            let error = text.parse::<TrialScript>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
