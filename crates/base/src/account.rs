use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// A count of bytes that are alive, whoever holds them. A [`Charge`] is made with a thing and given back when the thing
/// is dropped. A charge on an account counts on its total as well.
#[derive(Debug, Default)]
pub struct Account {
    bytes: AtomicUsize,
    total: Option<Arc<Self>>,
}

/// The bytes of one thing, charged to an account for as long as the thing lives.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

/// Bytes together with their charge: whoever still sends them keeps them charged.
struct Kept {
    bytes: Box<[u8]>,
    _charge: Charge,
}

impl Account {
    /// What kept bytes cost besides themselves: their owner, the count of who shares them, and what the allocator adds
    /// to both.
    pub const KEPT_BYTES: usize = size_of::<Kept>() + 48;

    /// Makes an account without a total.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes an account that counts on `total` as well.
    pub fn of(total: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), total: Some(total.clone()) })
    }

    /// The bytes that are charged at this moment.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Charges `bytes` until the charge is dropped.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.add(bytes);
        Charge { account: self.clone(), bytes }
    }

    /// The same bytes, charged until nobody holds any part of them. They must be an allocation of their own, and the
    /// handle the only one: what is shared is copied.
    pub fn keep(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.keep_with(bytes, 0)
    }

    /// The same bytes, charged with `beside` bytes more for what is held with them.
    pub fn keep_with(self: &Arc<Self>, bytes: Bytes, beside: usize) -> Bytes {
        // Takes the allocation over if nobody shares it, and copies it otherwise.
        let bytes = Vec::from(bytes).into_boxed_slice();
        let charge = self.charge(bytes.len() + Self::KEPT_BYTES + beside);
        Bytes::from_owner(Kept { bytes, _charge: charge })
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

impl Charge {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the size of the charge.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.account.add(bytes - self.bytes);
        } else {
            self.account.take(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

/// A copy of a thing is charged like the first.
impl Clone for Charge {
    fn clone(&self) -> Self {
        self.account.charge(self.bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.take(self.bytes);
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_given_back_and_what_is_copied_is_charged_again() {
        let total = Account::new();
        let (one, other) = (Account::of(&total), Account::of(&total));
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
    fn bytes_are_charged_once_for_as_long_as_anybody_holds_a_part_of_them() {
        let account = Account::new();
        let kept = account.keep(Bytes::from_static(b"a long text"));
        let charged = account.bytes();
        assert_eq!(charged, 11 + Account::KEPT_BYTES);
        let (part, clone) = (kept.slice(2..6), kept.clone());
        assert_eq!((&*part, &*clone, account.bytes()), (&b"long"[..], &b"a long text"[..], charged));
        drop((kept, clone));
        assert_eq!(account.bytes(), charged);
        drop(part);
        assert_eq!(account.bytes(), 0);
    }
}
