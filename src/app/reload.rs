//! Applies a reloaded configuration to the running process, without ending requests in flight.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tokio::signal::unix::Signal;

use super::{StartError, metrics};
use crate::admin::{ConfigPage, ConfigReader};
use crate::auth::{AllowedHosts, CrossOriginCheck};
use crate::config::{FlatConfigSettings, ServeArguments, ServeSettings};
use crate::feeds::FeedRegistry;
use crate::net::ConnectionLimits;
use crate::reflect::ReflectConfig;
use crate::serve::HttpFrontend;
use base::{BackgroundTasks, Reloadable, WatchedFile};

/// The sources of a running application's configuration.
pub struct ConfigReloadSources {
    /// The arguments of the `serve` command.
    pub arguments: ServeArguments,
    /// The receiver of SIGHUP, which triggers a check of the configuration file.
    pub sighup: Signal,
    /// A function that sets the log level of the process.
    pub log_level: SetLogLevelFn,
}

/// A function that sets the log level of the process.
pub type SetLogLevelFn = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// The settings that can change at run time.
#[derive(Clone)]
pub(super) struct ReloadableSettings {
    /// The configuration that is in effect.
    pub(super) running: Reloadable<ServeSettings>,
    pub(super) connections: Reloadable<ConnectionLimits>,
    pub(super) reflect: Reloadable<ReflectConfig>,
    /// The guards of clients' ports, and of the admin pages and metrics.
    pub(super) browsers: Reloadable<CrossOriginCheck>,
    pub(super) ops_browsers: Reloadable<CrossOriginCheck>,
    started: Arc<FlatConfigSettings>,
    file: Arc<OnceLock<(PathBuf, WatchedFile<ServeSettings>)>>,
    /// The changed keys that require a restart.
    restart_required: Arc<Mutex<Vec<String>>>,
}

impl ReloadableSettings {
    pub(super) fn new(config: &ServeSettings) -> Self {
        let (browsers, ops_browsers) = origin_checks(config);
        Self {
            running: config.clone().into(),
            connections: config.connections.clone().into(),
            reflect: config.reflect.clone().into(),
            browsers: browsers.into(),
            ops_browsers: ops_browsers.into(),
            started: Arc::new(config.settings.clone()),
            file: Arc::default(),
            restart_required: Arc::default(),
        }
    }

    /// Returns a reader of the running configuration for the admin pages.
    pub(super) fn reader(&self) -> ConfigReader {
        let this = self.clone();
        Arc::new(move || {
            let (file, last_error) = this.file.get().map(|(path, file)| (path.clone(), file.last_error())).unzip();
            let settings = &this.running.get().settings;
            ConfigPage {
                file: file.map(|path| path.display().to_string()),
                last_error: last_error.flatten(),
                restart_required: this.restart_required.lock().clone(),
                settings: settings.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect(),
            }
        })
    }

    /// Loads the configuration file, and starts to check it for changes periodically.
    pub(super) fn load(&self, arguments: &ServeArguments, tasks: &BackgroundTasks) -> Result<(), StartError> {
        let Some(path) = arguments.file().map(Path::to_owned) else { return Ok(()) };
        // A pipe can be read only once. Reading it again would return an empty configuration, which means every
        // default.
        if !path.is_file() {
            let path = path.display();
            tracing::info!(%path, "the configuration is not a regular file; its changes are not reloaded");
            return Ok(());
        }
        let arguments = arguments.clone();
        let parse = move |contents: &[Vec<u8>]| {
            let text = String::from_utf8(contents.concat()).map_err(|error| error.to_string())?;
            arguments.resolve_text(&text).map_err(|problems| problems.to_string())
        };
        let wrong = |error: base::FileLoadError<String>| StartError::Configuration(error.to_string());
        let file = WatchedFile::load("configuration", vec![path.clone()], parse).map_err(wrong)?;
        tasks.spawn_critical("configuration file", file.clone().watch(self.running.get().file_check_interval));
        drop(self.file.set((path, file)));
        Ok(())
    }

    /// Applies the configuration file whenever it changes, until the frontend is dropped. It holds only a weak
    /// reference, because a drain waits for the last strong one.
    pub(super) async fn run(self, mut sources: ConfigReloadSources, frontend: Weak<HttpFrontend>, feeds: FeedRegistry) {
        let Some((_, file)) = self.file.get() else {
            while sources.sighup.recv().await.is_some() {
                tracing::warn!("SIGHUP ignored: no configuration file to reload");
            }
            return;
        };
        let mut file = file.clone();
        loop {
            let Some(serving) = frontend.upgrade() else { return };
            self.apply(&file.current(), &sources.log_level, &serving, &feeds);
            serving.enable_local_decisions();
            drop(serving);
            tokio::select! {
                () = file.changed() => {}
                Some(()) = sources.sighup.recv() => file.check_now().await,
            }
        }
    }

    fn apply(&self, new: &ServeSettings, log_level: &SetLogLevelFn, frontend: &HttpFrontend, feeds: &FeedRegistry) {
        let running = self.running.get();
        let changes = new.settings.changes(&self.started, &running.settings);
        if !changes.applicable.is_empty() {
            let serve = merged(&running, new, running.settings.with_applied(&changes, &new.settings));
            self.apply_settings(&serve, frontend, feeds);
            if let Err(why) = log_level(&serve.log.level) {
                tracing::warn!(level = %serve.log.level, error = %why, "cannot apply log.level; keeping the previous level");
            }
            self.running.set(serve);
            tracing::info!(keys = changes.applicable.join(", "), "changed configuration applied");
        }
        metrics::restart_keys(changes.restart.len());
        let before = std::mem::replace(&mut *self.restart_required.lock(), changes.restart.clone());
        if before != changes.restart && !changes.restart.is_empty() {
            tracing::warn!("changed keys not applied; restart required for: {}", changes.restart.join(", "));
        }
        let outcome = match (changes.applicable.is_empty(), before == changes.restart) {
            (false, _) if changes.restart.is_empty() => "applied",
            (false, _) => "partially_applied",
            (true, false) => "restart_required",
            (true, true) => return,
        };
        metrics::reloaded(outcome);
    }

    fn apply_settings(&self, serve: &ServeSettings, frontend: &HttpFrontend, feeds: &FeedRegistry) {
        let (browsers, ops_browsers) = origin_checks(serve);
        self.browsers.set(browsers);
        self.ops_browsers.set(ops_browsers);
        self.connections.set(serve.connections.clone());
        // Setting it restarts the wait of each feed's self-check, so it is set only if it has changed.
        if *self.reflect.get() != serve.reflect {
            self.reflect.set(serve.reflect.clone());
        }
        frontend.tune(&serve.serve);
        feeds.tune(&serve.cache);
    }
}

/// Returns the running configuration, updated with those new settings that can change at run time. `serve` and `feeds`
/// keep the parts of theirs that cannot.
fn merged(running: &ServeSettings, new: &ServeSettings, settings: FlatConfigSettings) -> ServeSettings {
    let now = running.clone();
    let mut log = now.log.clone();
    log.level.clone_from(&new.log.level);
    ServeSettings {
        allowed_hosts: new.allowed_hosts.clone(),
        allowed_origins: new.allowed_origins.clone(),
        preload: new.preload.clone(),
        ready_stale_max: new.ready_stale_max,
        serve: new.serve.clone(),
        cache: new.cache.clone(),
        reflect: ReflectConfig { retry: now.reflect.retry, ..new.reflect.clone() },
        connections: ConnectionLimits { http2_codec: now.connections.http2_codec, ..new.connections.clone() },
        drain: new.drain,
        log,
        settings,
        ..now
    }
}

/// Returns the browser guards of clients' ports, and of the admin pages and metrics.
fn origin_checks(config: &ServeSettings) -> (CrossOriginCheck, CrossOriginCheck) {
    let hosts = AllowedHosts::new(&config.allowed_hosts);
    let origins = || config.allowed_origins.clone();
    let ops = CrossOriginCheck::new(false, hosts.clone().or_any_address(), origins());
    (CrossOriginCheck::new(config.tls.is_some(), hosts, origins()), ops)
}
