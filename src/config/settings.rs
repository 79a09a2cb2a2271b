use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::configuration::Configuration;

/// Every configuration key with its effective value, from a flag, the file or a default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlatConfigSettings(BTreeMap<String, Value>);

/// The effect of a configuration that was read again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingChanges {
    /// The changed keys that can be applied now.
    pub applicable: Vec<String>,
    /// The keys that differ from the configuration at start and require a restart.
    pub restart: Vec<String>,
}

/// The keys that can be reloaded while the process runs (docs/CONFIG.md, "Reloading"), besides those of
/// [`RELOADABLE_SECTIONS`]. All others require a restart.
const RELOADABLE: [&str; 10] = [
    "allowedHosts",
    "allowedOrigins",
    "consistency",
    "drain",
    "execOnLoopback",
    "log.level",
    "preload",
    "readyStaleMax",
    "apiVersion",
    "kind",
];
const RELOADABLE_SECTIONS: [&str; 4] = ["feeds.", "limits.", "reads.", "window."];
/// The keys of these sections that require a restart.
const NOT_RELOADABLE: [&str; 1] = ["feeds.memoryMebibytes"];

/// The meaning of other keys depends on these. If one of them changes, no key is applied: a file that grants much under
/// `auth: delegated` would grant it to everyone under `auth: none`.
const MODE_KEYS: [&str; 2] = ["auth", "node"];

impl FlatConfigSettings {
    pub(super) fn of(file: &Configuration) -> Self {
        let mut settings = Self::default();
        // Serialization cannot fail: the file of defaults and the schema are generated from the same type.
        settings.insert_flattened("", serde_json::to_value(file).unwrap_or_default());
        settings
    }

    fn insert_flattened(&mut self, above: &str, value: Value) {
        match value {
            Value::Object(section) => section.into_iter().for_each(|(key, value)| {
                let path = if above.is_empty() { key } else { format!("{above}.{key}") };
                self.insert_flattened(&path, value);
            }),
            value => drop(self.0.insert(above.to_owned(), value)),
        }
    }

    /// Iterates over keys and values, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The changes if these settings replace `running` in a process that was started with `started`.
    pub fn changes(&self, started: &Self, running: &Self) -> SettingChanges {
        let is_reloaded = |key: &&str| is_reloadable(key);
        let mut restart: Vec<_> = self.differing(started).into_iter().filter(|key| !is_reloaded(key)).collect();
        let mut applicable: Vec<_> = self.differing(running).into_iter().filter(is_reloaded).collect();
        if restart.iter().any(|key| MODE_KEYS.contains(key)) {
            restart.append(&mut applicable);
            restart.sort_unstable();
        }
        let owned = |keys: Vec<&str>| keys.into_iter().map(str::to_owned).collect();
        SettingChanges { applicable: owned(applicable), restart: owned(restart) }
    }

    fn differing<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let keys: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        keys.into_iter().filter(|key| self.0.get(*key) != other.0.get(*key)).map(String::as_str).collect()
    }

    /// Returns these settings with the values of `new` for the keys that can be applied at run time.
    #[must_use]
    pub fn with_applied(&self, changes: &SettingChanges, new: &Self) -> Self {
        let mut settings = self.clone();
        settings.0.extend(changes.applicable.iter().filter_map(|key| Some((key.clone(), new.0.get(key)?.clone()))));
        settings
    }
}

fn is_reloadable(key: &str) -> bool {
    let is_in_section = RELOADABLE_SECTIONS.iter().any(|section| key.starts_with(section));
    RELOADABLE.contains(&key) || (is_in_section && !NOT_RELOADABLE.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigProblems;

    fn parse(file: &str) -> FlatConfigSettings {
        let mut problems = ConfigProblems::default();
        let settings = FlatConfigSettings::of(&Configuration::parse(file, &mut problems));
        assert!(problems.is_empty(), "{problems}");
        settings
    }

    #[test]
    fn reloadable_keys_exist_and_are_documented() {
        let settings = parse("");
        let text = include_str!("../../docs/CONFIG.md");
        let (_, below) = text.split_once("## Reloading").expect("a section");
        let (section, _) = below.split_once("\n## ").unwrap_or((below, ""));
        for key in RELOADABLE.iter().chain(&NOT_RELOADABLE).chain(&MODE_KEYS) {
            assert!(settings.0.contains_key(*key), "{key} is not a key");
        }
        for name in RELOADABLE_SECTIONS {
            let names_section = section.contains(&format!("`{}`", name.trim_end_matches('.')));
            assert!(names_section && settings.0.keys().any(|key| key.starts_with(name)), "{name} in the document");
        }
        let is_header = |key: &str| ["apiVersion", "kind"].contains(&key);
        for key in settings.0.keys().filter(|key| !is_header(key)) {
            let is_named = section.contains(&format!("`{key}`"));
            let is_exception = NOT_RELOADABLE.contains(&&**key) || MODE_KEYS.contains(&&**key);
            let is_in_section = RELOADABLE_SECTIONS.iter().any(|name| key.starts_with(name));
            assert_eq!((is_named || is_in_section) && !is_exception, is_reloadable(key), "{key} in the document");
        }
    }

    #[test]
    fn changed_setting_is_reloaded_or_requires_restart() {
        let started = parse("limits: {watches: 7}\nlisten: [127.0.0.1:1]");
        let new = parse("limits: {watches: 8}\nlisten: [127.0.0.1:2]\nlog: {level: debug}");
        let changes = new.changes(&started, &started);
        assert_eq!(changes.applicable, ["limits.watches", "log.level"]);
        assert_eq!(changes.restart, ["listen"]);
        let running = started.with_applied(&changes, &new);
        assert_eq!(
            new.changes(&started, &running),
            SettingChanges { applicable: Vec::new(), restart: vec!["listen".to_owned()] }
        );
        assert_eq!(started.changes(&started, &running).applicable, changes.applicable, "and back again");
    }

    #[test]
    fn reload_applies_nothing_if_authentication_settings_change() {
        let started = parse("");
        let new = parse("auth: delegated\nexecOnLoopback: true");
        let changes = new.changes(&started, &started);
        assert_eq!(
            (changes.applicable.len(), changes.restart),
            (0, vec!["auth".to_owned(), "execOnLoopback".to_owned()])
        );
    }
}
