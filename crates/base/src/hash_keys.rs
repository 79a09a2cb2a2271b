use std::collections::HashMap;
#[cfg(debug_assertions)]
use std::hash::{BuildHasherDefault, DefaultHasher};

#[cfg(debug_assertions)]
type Keys = BuildHasherDefault<DefaultHasher>;
#[cfg(not(debug_assertions))]
type Keys = std::hash::RandomState;

/// What hash maps hash with, where something follows from their order: a secret in a build that is shipped. In one with
/// debug assertions, as those of tests are, it is the same in each process, so that a simulation can be repeated.
pub type HashKeys = Keys;

/// A hash map from whose order something follows.
pub type Map<K, V> = HashMap<K, V, HashKeys>;
