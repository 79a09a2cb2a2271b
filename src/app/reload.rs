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
use crate::serve::{CacheCoverage, HttpFrontend, ServeConfig};
use base::{BackgroundTasks, Reloadable, WatchedFile};

/// The sources of a running application's configuration.
pub struct ConfigReloadSources {
    /// The arguments of the `serve` command.
    pub arguments: ServeArguments,
    /// The receiver of SIGHUP, which triggers a check of the configuration file.
    pub hangups: Signal,
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
    waiting: Arc<Mutex<Vec<String>>>,
}

impl ReloadableSettings {
    pub(super) fn new(config: &ServeSettings) -> Self {
        let (browsers, ops_browsers) = guards(config);
        Self {
            running: config.clone().into(),
            connections: config.connections.clone().into(),
            reflect: config.reflect.clone().into(),
            browsers: browsers.into(),
            ops_browsers: ops_browsers.into(),
            started: Arc::new(config.settings.clone()),
            file: Arc::default(),
            waiting: Arc::default(),
        }
    }

    /// Returns a reader of the running configuration for the admin pages.
    pub(super) fn reader(&self) -> ConfigReader {
        let this = self.clone();
        Arc::new(move || {
            let (file, trouble) = this.file.get().map(|(path, file)| (path.clone(), file.trouble())).unzip();
            let settings = &this.running.get().settings;
            ConfigPage {
                file: file.map(|path| path.display().to_string()),
                trouble: trouble.flatten(),
                restart: this.waiting.lock().clone(),
                settings: settings.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect(),
            }
        })
    }

    /// Loads the configuration file, and starts to check it for changes periodically.
    pub(super) fn read(&self, arguments: &ServeArguments, tasks: &BackgroundTasks) -> Result<(), StartError> {
        let Some(path) = arguments.file().map(Path::to_owned) else { return Ok(()) };
        // A pipe can be read only once. Reading it again would return an empty configuration, which means every
        // default.
        if !path.is_file() {
            let path = path.display();
            tracing::info!(%path, "the configuration is not a regular file; its changes are not reloaded");
            return Ok(());
        }
        let arguments = arguments.clone();
        let read = move |contents: &[Vec<u8>]| {
            let text = String::from_utf8(contents.concat()).map_err(|error| error.to_string())?;
            arguments.resolve_text(&text).map_err(|problems| problems.to_string())
        };
        let wrong = |error: base::FileLoadError<String>| StartError::Configuration(error.to_string());
        let file = WatchedFile::load("configuration", vec![path.clone()], read).map_err(wrong)?;
        tasks.spawn_needed("configuration file", file.clone().keep_up(self.running.get().look_every));
        drop(self.file.set((path, file)));
        Ok(())
    }

    /// Applies the configuration file whenever it changes, until the frontend is dropped. It holds only a weak
    /// reference, because a drain waits for the last strong one.
    pub(super) async fn keep_up(
        self,
        mut reloading: ConfigReloadSources,
        frontend: Weak<HttpFrontend>,
        feeds: FeedRegistry,
    ) {
        let Some((_, file)) = self.file.get() else {
            while reloading.hangups.recv().await.is_some() {
                tracing::warn!("SIGHUP ignored: no configuration file to reload");
            }
            return;
        };
        let mut file = file.clone();
        loop {
            let Some(serving) = frontend.upgrade() else { return };
            self.take(&file.current(), &reloading.log_level, &serving, &feeds);
            drop(serving);
            tokio::select! {
                () = file.changed() => {}
                Some(()) = reloading.hangups.recv() => file.look_again().await,
            }
        }
    }

    fn take(&self, read: &ServeSettings, log_level: &SetLogLevelFn, frontend: &HttpFrontend, feeds: &FeedRegistry) {
        let running = self.running.get();
        let changes = read.settings.changes(&self.started, &running.settings);
        if !changes.taken.is_empty() {
            let serve = merged(&running, read, running.settings.taking(&changes, &read.settings));
            self.put(&serve, frontend, feeds);
            if let Err(why) = log_level(&serve.log.level) {
                tracing::warn!(level = %serve.log.level, error = %why, "cannot apply log.level");
            }
            self.running.set(serve);
            tracing::info!(keys = changes.taken.join(", "), "changed configuration applied");
        }
        metrics::restart_keys(changes.restart.len());
        let before = std::mem::replace(&mut *self.waiting.lock(), changes.restart.clone());
        if before != changes.restart && !changes.restart.is_empty() {
            tracing::warn!("changed keys not applied; restart required for: {}", changes.restart.join(", "));
        }
        let outcome = match (changes.taken.is_empty(), before == changes.restart) {
            (false, _) if changes.restart.is_empty() => "applied",
            (false, _) => "partially_applied",
            (true, false) => "restart_required",
            (true, true) => return,
        };
        metrics::reloaded(outcome);
    }

    fn put(&self, serve: &ServeSettings, frontend: &HttpFrontend, feeds: &FeedRegistry) {
        let (browsers, ops_browsers) = guards(serve);
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

/// Returns the running configuration, updated with those new settings that can change at run time.
fn merged(running: &ServeSettings, read: &ServeSettings, settings: FlatConfigSettings) -> ServeSettings {
    let (now, coverage) = (running.clone(), &running.serve.coverage);
    let coverage =
        CacheCoverage { node: coverage.node.clone(), authorizes: coverage.authorizes, ..read.serve.coverage.clone() };
    let ServeConfig { body_max, unread, fresh_wait_max, .. } = now.serve;
    let mut log = now.log.clone();
    log.level.clone_from(&read.log.level);
    ServeSettings {
        allowed_hosts: read.allowed_hosts.clone(),
        allowed_origins: read.allowed_origins.clone(),
        preload: read.preload.clone(),
        ready_stale_max: read.ready_stale_max,
        serve: ServeConfig { coverage, fresh_wait_max, body_max, unread, ..read.serve.clone() },
        cache: now.cache.keeping(&read.cache),
        reflect: ReflectConfig { retry: now.reflect.retry, ..read.reflect.clone() },
        connections: ConnectionLimits { http2_codec: now.connections.http2_codec, ..read.connections.clone() },
        drain: read.drain,
        log,
        settings,
        ..now
    }
}

/// Returns the browser guards of clients' ports, and of the admin pages and metrics.
fn guards(config: &ServeSettings) -> (CrossOriginCheck, CrossOriginCheck) {
    let hosts = AllowedHosts::new(&config.allowed_hosts);
    let origins = || config.allowed_origins.clone();
    let ops = CrossOriginCheck::new(false, hosts.clone().or_any_address(), origins());
    (CrossOriginCheck::new(config.tls.is_some(), hosts, origins()), ops)
}
