use std::borrow::Cow;

use kubeapi::{FieldValueKind, SelectableFieldTable};

/// The paths to read from each object of a feed, merged into a tree. One walk over the object visits them all and skips
/// everything else. Steps are JSON keys or protobuf field numbers.
pub(super) struct PathTrie<K> {
    nodes: Vec<TrieNode<K>>,
    slots: usize,
}

pub(super) type TrieNodeId = usize;

struct TrieNode<K> {
    /// The slot in which a text or number at this node is stored.
    slot: Option<usize>,
    /// The child nodes by step. There are only a few, so a scan is faster than a map.
    children: Vec<(K, TrieNodeId)>,
}

/// The slots of one selectable field's alternatives, in the order in which they are tried.
pub(super) struct FieldValueSlots {
    kind: FieldValueKind,
    slots: Vec<usize>,
}

impl<K: PartialEq> PathTrie<K> {
    pub(super) const ROOT: TrieNodeId = 0;

    pub(super) fn new() -> Self {
        Self { nodes: vec![TrieNode { slot: None, children: Vec::new() }], slots: 0 }
    }

    /// Adds a path to the trie, and returns the node at its end.
    pub(super) fn node(&mut self, path: impl IntoIterator<Item = K>) -> TrieNodeId {
        let mut at = Self::ROOT;
        for step in path {
            at = match self.nodes[at].children.iter().find(|(key, _)| *key == step) {
                Some((_, child)) => *child,
                None => self.add_child(at, step),
            };
        }
        at
    }

    /// Adds a path to the trie, and returns the slot of its value. Equal paths share a slot.
    pub(super) fn slot(&mut self, path: impl IntoIterator<Item = K>) -> usize {
        let node = self.node(path);
        *self.nodes[node].slot.get_or_insert_with(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn slot_at(&self, node: TrieNodeId) -> Option<usize> {
        self.nodes[node].slot
    }

    pub(super) fn is_leaf(&self, node: TrieNodeId) -> bool {
        self.nodes[node].children.is_empty()
    }

    /// Returns the child for which `is_step` holds, with a bit that is unique among its siblings. A walk stores the
    /// children seen in a `u64`. (No table has 64 fields under one parent. The bit of a 65th child is 0, so it always
    /// counts as unseen.)
    #[inline]
    pub(super) fn child(&self, node: TrieNodeId, is_step: impl Fn(&K) -> bool) -> Option<(u64, TrieNodeId)> {
        let children = &self.nodes[node].children;
        let at = children.iter().position(|(key, _)| is_step(key))?;
        Some((if at < 64 { 1 << at } else { 0 }, children[at].1))
    }

    fn add_child(&mut self, parent: TrieNodeId, step: K) -> TrieNodeId {
        let id = self.nodes.len();
        self.nodes.push(TrieNode { slot: None, children: Vec::new() });
        self.nodes[parent].children.push((step, id));
        id
    }
}

impl FieldValueSlots {
    /// Adds one selectable field. `paths` are its alternatives; the first that is present and not empty wins.
    pub(super) fn new<K: PartialEq, P: IntoIterator<Item = K>>(
        kind: FieldValueKind,
        trie: &mut PathTrie<K>,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        Self { kind, slots: paths.into_iter().map(|path| trie.slot(path)).collect() }
    }

    /// Adds all selectable fields of a table by JSON keys, in its order.
    pub(super) fn json(trie: &mut PathTrie<Box<str>>, table: &SelectableFieldTable) -> Vec<Self> {
        let step = |step: &String| step.as_str().into();
        table.fields.iter().map(|f| Self::new(f.kind, trie, f.json.iter().map(|path| path.iter().map(step)))).collect()
    }

    /// Adds all selectable fields of a table by field numbers, in its order.
    pub(super) fn protobuf(trie: &mut PathTrie<u32>, table: &SelectableFieldTable) -> Vec<Self> {
        table.fields.iter().map(|f| Self::new(f.kind, trie, f.proto.iter().map(|path| path.iter().copied()))).collect()
    }

    /// Returns the values of `all` fields, in their order. A value is the first alternative for which `text` returns
    /// anything but `""`, else the field's text for absence.
    pub(super) fn values<'a, E>(
        all: &[Self],
        text: impl Fn(FieldValueKind, usize) -> Result<Option<Cow<'a, str>>, E>,
    ) -> Result<Vec<Cow<'a, str>>, E> {
        // Not `collect`: through a `Result` it does not know the length, and this runs once per object.
        let mut values = Vec::with_capacity(all.len());
        for field in all {
            let mut value = None;
            for &slot in &field.slots {
                value = text(field.kind, slot)?;
                if value.as_ref().is_some_and(|value| !value.is_empty()) {
                    break;
                }
            }
            let value = value.filter(|value| !value.is_empty());
            values.push(value.unwrap_or_else(|| field.kind.absent_text().into()));
        }
        Ok(values)
    }
}
