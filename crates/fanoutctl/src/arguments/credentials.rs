use std::path::PathBuf;

/// Flags that say how `bench` and `verify` are known to the servers that they ask, and whom they believe.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CredentialArguments {
    /// Credentials for all servers, and an authority to trust
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Certificates to trust as well, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Believe any certificate
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
    /// Certificate to show, PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
    /// Token to send, over plain HTTP too
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}
