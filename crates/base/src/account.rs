use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// A count of live bytes, whatever owns them. A [`MemoryCharge`] is made together with a value and released when the
/// value is dropped. A charge on an account also counts on its total.
#[derive(Debug, Default)]
pub struct MemoryAccount {
    bytes: AtomicUsize,
    total: Option<Arc<Self>>,
}

/// The bytes of one value, charged to an account for as long as the value lives.
#[derive(Debug)]
pub struct MemoryCharge {
    account: Arc<MemoryAccount>,
    bytes: usize,
}

/// Bytes together with their charge, so that they stay charged while they are being sent.
struct ChargedBytes {
    bytes: Box<[u8]>,
    _charge: MemoryCharge,
}

impl MemoryAccount {
    /// The overhead of charged bytes: their owner, the reference count, and the allocator's overhead for both.
    pub const OVERHEAD_BYTES: usize = size_of::<ChargedBytes>() + 48;

    /// Creates an account that counts on no other account.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Creates an account that also counts on `total`.
    pub fn child_of(total: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), total: Some(total.clone()) })
    }

    /// Returns the number of bytes that are currently charged to the account.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Charges `bytes` to the account until the charge is dropped.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> MemoryCharge {
        self.add(bytes);
        MemoryCharge { account: self.clone(), bytes }
    }

    /// Returns the same bytes, charged until the last handle to any part of them is dropped. If `bytes` is not the only
    /// handle to a separate allocation, the contents are copied.
    pub fn charge_bytes(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.charge_with_overhead(bytes, 0)
    }

    /// Returns the same bytes, charged with `overhead` additional bytes for data that is stored with them.
    pub fn charge_with_overhead(self: &Arc<Self>, bytes: Bytes, overhead: usize) -> Bytes {
        // Takes over the allocation if it is not shared, and copies it otherwise.
        let bytes = Vec::from(bytes).into_boxed_slice();
        let charge = self.charge(bytes.len() + Self::OVERHEAD_BYTES + overhead);
        Bytes::from_owner(ChargedBytes { bytes, _charge: charge })
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(total) = &self.total {
            total.add(bytes);
        }
    }

    fn take(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(total) = &self.total {
            total.take(bytes);
        }
    }
}

impl MemoryCharge {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the number of charged bytes.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.account.add(bytes - self.bytes);
        } else {
            self.account.take(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

/// A clone is charged like the original.
impl Clone for MemoryCharge {
    fn clone(&self) -> Self {
        self.account.charge(self.bytes)
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.account.take(self.bytes);
    }
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charge_is_released_on_drop_and_added_again_on_clone() {
        let total = MemoryAccount::new();
        let (one, other) = (MemoryAccount::child_of(&total), MemoryAccount::child_of(&total));
        let mut first = one.charge(100);
        let second = other.charge(10);
        assert_eq!((one.bytes(), other.bytes(), total.bytes()), (100, 10, 110));
        let again = first.clone();
        assert_eq!((one.bytes(), total.bytes()), (200, 210));
        first.set(30);
        assert_eq!((first.bytes(), one.bytes(), total.bytes()), (30, 130, 140));
        first.set(50);
        drop((again, second));
        assert_eq!((one.bytes(), other.bytes(), total.bytes()), (50, 0, 50));
        drop(first);
        assert_eq!((one.bytes(), total.bytes()), (0, 0));
    }

    #[test]
    fn kept_bytes_are_charged_once_until_the_last_slice_drops() {
        let account = MemoryAccount::new();
        let kept = account.charge_bytes(Bytes::from_static(b"a long text"));
        let charged = account.bytes();
        assert_eq!(charged, 11 + MemoryAccount::OVERHEAD_BYTES);
        let (part, clone) = (kept.slice(2..6), kept.clone());
        assert_eq!((&*part, &*clone, account.bytes()), (&b"long"[..], &b"a long text"[..], charged));
        drop((kept, clone));
        assert_eq!(account.bytes(), charged);
        drop(part);
        assert_eq!(account.bytes(), 0);
    }
}
