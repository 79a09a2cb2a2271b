use std::collections::VecDeque;
use std::str::FromStr;
use std::time::Duration;

/// What is done in a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// The apiserver is killed and started again.
    Apiserver,
    /// The proxy is.
    Proxy,
    Quit,
}

/// Deeds, each with its time since the informers are there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script(VecDeque<(Duration, Deed)>);

const DEEDS_MAX: usize = 1000;

impl Deed {
    /// What a key stands for.
    pub fn of_key(key: u8) -> Option<Self> {
        match key {
            b'a' => Some(Self::Apiserver),
            b'p' => Some(Self::Proxy),
            b'q' => Some(Self::Quit),
            _ => None,
        }
    }
}

impl Script {
    /// When the next deed is due.
    pub fn next_at(&self) -> Option<Duration> {
        self.0.front().map(|(at, _)| *at)
    }

    pub fn take(&mut self) -> Option<Deed> {
        self.0.pop_front().map(|(_, deed)| deed)
    }
}

impl FromStr for Script {
    type Err = String;

    /// `5s apiserver, 10s proxy, 20s quit`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut deeds = VecDeque::new();
        for part in text.split(',').map(str::trim) {
            let (at, deed) = part
                .split_once(char::is_whitespace)
                .ok_or_else(|| format!("{part:?}: expected a time and what is done then, such as `5s apiserver`"))?;
            let at = humantime::parse_duration(at).map_err(|error| format!("{at:?}: {error}"))?;
            let deed = match deed.trim() {
                "apiserver" => Deed::Apiserver,
                "proxy" => Deed::Proxy,
                "quit" => Deed::Quit,
                other => return Err(format!("{other:?}: expected apiserver, proxy or quit")),
            };
            if deeds.back().is_some_and(|(before, _)| at < *before) {
                return Err(format!("{part:?}: it is before what stands in front of it"));
            }
            deeds.push_back((at, deed));
        }
        if deeds.len() > DEEDS_MAX {
            return Err(format!("{} deeds; there may be {DEEDS_MAX}", deeds.len()));
        }
        Ok(Self(deeds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_times_and_deeds_in_order() {
        let mut script: Script = "500ms apiserver,10s  proxy , 1m quit".parse().unwrap();
        let mut found = Vec::new();
        while let Some(at) = script.next_at() {
            found.push((at, script.take().unwrap()));
        }
        let seconds = Duration::from_secs;
        let wanted = [(seconds(1) / 2, Deed::Apiserver), (seconds(10), Deed::Proxy), (seconds(60), Deed::Quit)];
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_is_wrong_with_a_script_is_said() {
        for (text, word) in [
            ("", "expected a time"),
            ("5s", "expected a time"),
            ("soon quit", "soon"),
            ("5s etcd", "expected apiserver, proxy or quit"),
            ("5s proxy, 4s quit", "before"),
        ] {
            let error = text.parse::<Script>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
