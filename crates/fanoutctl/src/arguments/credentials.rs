use std::path::PathBuf;

use probe::TargetCredentials;

/// Flags for the credentials of `bench` and `verify`, and for the certificates that they trust.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CredentialArguments {
    /// Credentials for all servers, and a CA to trust
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Additional CA certificates to trust, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Do not verify the server certificate
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
    /// Client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_cert: Option<PathBuf>,
    /// Key of the client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
    /// File with a bearer token; it is also sent over plain HTTP
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl From<CredentialArguments> for TargetCredentials {
    fn from(given: CredentialArguments) -> Self {
        Self {
            kubeconfig: given.kubeconfig,
            ca: given.ca,
            insecure: given.insecure_skip_tls_verify,
            client_certificate: given.client_cert,
            client_key: given.client_key,
            token_file: given.token_file,
        }
    }
}
