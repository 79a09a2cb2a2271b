use crate::arguments::CredentialArguments;
use probe::TargetCredentials;

impl From<CredentialArguments> for TargetCredentials {
    fn from(said: CredentialArguments) -> Self {
        Self {
            kubeconfig: said.kubeconfig,
            ca: said.ca,
            insecure: said.insecure_skip_tls_verify,
            client_certificate: said.client_cert,
            client_key: said.client_key,
            token_file: said.token_file,
        }
    }
}
