//! Tests of the limit on reviewed namespaces.

use super::*;
use kubeapi::User;

#[test]
fn namespace_quota_limits_each_user_and_the_total() {
    let quota = ReviewedNamespaceLimit::new(10, 6);
    let of =
        |name: &str| quota.permits(&FlowDistinguisher::from_user(&User { name: name.to_owned(), ..User::default() }));
    let (first, second, bob) = (of("ada"), of("ada"), of("bob"));
    assert!(first.try_resize(4) && first.try_resize(4), "what is there is counted once");
    assert!(!second.try_resize(3) && second.try_resize(2), "two watches of one user");
    assert!(!bob.try_resize(5) && bob.try_resize(4), "all together");
    assert!(!first.try_resize(5));
    drop(second);
    assert!(first.try_resize(6) && bob.try_resize(4) && !bob.try_resize(5));
    drop((first, bob));
    assert_eq!(quota.all.available_permits(), 10);
}
