use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Problems, TlsSource};

/// A mapping of the file whose keys are taken out one by one; what is left at the end is unknown.
pub(super) struct Section<'a> {
    name: &'static str,
    keys: Map<String, Value>,
    pub(super) problems: &'a mut Problems,
}

impl<'a> Section<'a> {
    pub(super) fn of(name: &'static str, value: Value, problems: &'a mut Problems) -> Option<Self> {
        match value {
            Value::Object(keys) => Some(Self { name, keys, problems }),
            Value::Null => Some(Self { name, keys: Map::new(), problems }),
            _ => {
                problems
                    .add(format!("{}: expected a mapping of keys", if name.is_empty() { "the file" } else { name }));
                None
            }
        }
    }

    pub(super) fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    pub(super) fn take<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        let value = self.keys.remove(key)?;
        let path = self.path(key);
        self.problems.check(&path, serde_json::from_value(value))
    }

    pub(super) fn put<T: DeserializeOwned>(&mut self, key: &str, into: &mut T) {
        if let Some(value) = self.take(key) {
            *into = value;
        }
    }

    pub(super) fn put_some<T: DeserializeOwned>(&mut self, key: &str, into: &mut Option<T>) {
        if let Some(value) = self.take(key) {
            *into = Some(value);
        }
    }

    pub(super) fn put_bounded<T>(&mut self, key: &str, into: &mut T, min: T, max: T)
    where
        T: DeserializeOwned + PartialOrd + Copy + fmt::Display,
    {
        match self.take::<T>(key) {
            Some(value) if (&min..=&max).contains(&&value) => *into = value,
            Some(value) => self.problems.add(format!("{}: {value} is not within {min}..={max}", self.path(key))),
            None => {}
        }
    }

    /// `90s`, `10m`, `1h 30m`.
    pub(super) fn put_duration(&mut self, key: &str, into: &mut Duration) {
        if let Some(text) = self.take::<String>(key) {
            let path = self.path(key);
            if let Some(duration) = self.problems.check(&path, humantime::parse_duration(&text)) {
                *into = duration;
            }
        }
    }

    pub(super) fn tls(&mut self) -> Option<TlsSource> {
        let (certificate, key) = (self.take::<PathBuf>("certificate"), self.take::<PathBuf>("key"));
        let (self_signed, out) = (self.take::<bool>("selfSigned"), self.take::<PathBuf>("selfSignedOut"));
        match (certificate, key, self_signed.unwrap_or(false)) {
            (Some(certificate), Some(key), false) => Some(TlsSource::Files { certificate, key }),
            (None, None, true) => Some(TlsSource::SelfSigned { out }),
            (None, None, false) => None,
            _ => {
                self.problems.add("tls: give either certificate and key, or selfSigned");
                None
            }
        }
    }

    /// Reads a section below this one.
    pub(super) fn within(&mut self, name: &'static str, read: impl FnOnce(&mut Section<'_>)) {
        let Some(value) = self.keys.remove(name) else { return };
        if let Some(mut section) = Section::of(name, value, self.problems) {
            read(&mut section);
            section.finish();
        }
    }

    pub(super) fn finish(self) {
        for key in self.keys.keys() {
            let path = self.path(key);
            self.problems.add(format!("{path}: unknown key"));
        }
    }
}
