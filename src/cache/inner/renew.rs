use std::sync::Arc;

use super::Inner;
use crate::cache::chunks::ChunkIndex;
use crate::wire::Object;

impl Inner {
    /// Exchanges what is held at the same version in other bytes. Returns the objects from before.
    ///
    /// The state before a version that is not whole yet stays as it is: it is shown until then.
    pub(in crate::cache) fn renew(&mut self, objects: Vec<Arc<Object>>) -> Vec<Arc<Object>> {
        let fits = |object: &Arc<Object>| {
            self.objects.get(&object.key).is_some_and(|held| held.rv == object.rv && held.body() != object.body())
        };
        let objects: Vec<_> = objects.into_iter().filter(fits).collect();
        if objects.is_empty() {
            return Vec::new();
        }
        self.leave_state();
        self.content += 1;
        self.cut = Arc::new(ChunkIndex::of_content(self.content));
        let mut gone = Vec::with_capacity(objects.len());
        for object in objects {
            self.object_bytes += object.body().len();
            if let Some(before) = self.objects.insert(object.key.clone(), object) {
                self.object_bytes -= before.body().len();
                self.left_bytes += before.body().len() as u64;
                gone.push(before);
            }
            self.states.changed(self.objects.len());
        }
        gone
    }
}
