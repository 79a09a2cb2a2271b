use super::*;

fn chain_of(root: &Authority, from: u64, to: u64) -> PeerCertChain {
    PeerCertChain::new(Arc::from([root.issue(&valid(from, to))]))
}

/// Whether the chain is trusted at these times, and the number of signature checks.
fn verified(chain: &PeerCertChain, authorities: &CertificateAuthorities, moments: &[u64]) -> (usize, Vec<bool>) {
    checks(|| {
        moments
            .iter()
            .map(|now| chain.holder(CertificateAuthorityRole::Client, authorities, at(*now)).is_ok())
            .collect()
    })
}

#[test]
fn chain_is_verified_once_per_connection() {
    let (ours, theirs) = (Authority::new("one name"), Authority::new("one name"));
    let authorities = counted(ours.trusted());
    let (known, unknown) = (chain_of(&ours, 0, 1000), chain_of(&theirs, 0, 1000));
    assert_eq!(verified(&known, &authorities, &[1, 2, 500, 1000]), (1, vec![true; 4]));
    assert_eq!(verified(&unknown, &authorities, &[1, 2, 3, 60]), (1, vec![false; 4]), "a no is kept too");
    assert_eq!(verified(&unknown, &authorities, &[61]).0, 1, "but not for ever");
}

#[test]
fn changed_authorities_reverify_and_equal_ones_reuse_result() {
    let (ours, theirs) = (Authority::new("one name"), Authority::new("one name"));
    let (first, second) = (counted(ours.trusted()), counted(theirs.trusted()));
    let known = chain_of(&ours, 0, 1000);
    assert_eq!(verified(&known, &first, &[1]), (1, vec![true]));
    assert_eq!(verified(&known, &second, &[1]), (1, vec![false]), "not by those");
    assert_eq!(verified(&known, &first, &[1]), (1, vec![true]), "the no was not for these");
    assert_eq!(verified(&known, &counted(ours.trusted()), &[2]), (0, vec![true]), "they were only read again");
}

#[test]
fn cached_result_changes_at_validity_boundaries() {
    let root = Authority::new("root");
    let authorities = counted(root.trusted());
    let certificate = chain_of(&root, 30, 100);
    // webpki checks the validity first, and then no signature.
    assert_eq!(verified(&certificate, &authorities, &[0, 29]), (0, vec![false, false]));
    assert_eq!(verified(&certificate, &authorities, &[30, 31, 100]), (1, vec![true; 3]), "at once when it is valid");
    assert_eq!(verified(&certificate, &authorities, &[101, 102]), (0, vec![false; 2]));
    assert_eq!(verified(&certificate, &authorities, &[100, 101]), (1, vec![true, false]), "the clock was set back");
}

#[test]
fn cached_client_result_does_not_apply_to_front_proxy_role() {
    let (clients, proxies) = (Authority::new("clients"), Authority::new("proxies"));
    let client = chain_of(&clients, 0, 100);
    let (clients, proxies) = (clients.trusted(), proxies.trusted());
    for _ in 0..2 {
        assert!(client.holder(CertificateAuthorityRole::Client, &clients, at(1)).is_ok());
        assert!(client.holder(CertificateAuthorityRole::FrontProxy, &proxies, at(1)).is_err());
    }
}
