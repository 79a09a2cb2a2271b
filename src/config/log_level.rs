//! Values of `log.level` and `RUST_LOG`.

use tracing_subscriber::EnvFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Validates a log filter and returns it in the form that `tracing` parses.
///
/// `tracing` reads an unknown level as the name of a module, and then hides all other modules. Therefore every part
/// must have a level. If a filter has no default level, errors of all other modules are shown.
pub(super) fn filter(text: &str) -> Result<String, String> {
    let parts: Vec<_> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Err(invalid_level(text, "empty value"));
    }
    // Fields in brackets may contain commas and equals signs.
    if !text.contains('[') {
        for part in &parts {
            let (level, of) = part.rsplit_once('=').map_or((*part, None), |(target, level)| (level, Some(target)));
            if !is_level(level) {
                return Err(invalid_level(text, &format!("{level:?} is not a level")));
            }
            if of.is_some_and(|target| target.trim().is_empty()) {
                return Err(invalid_level(text, &format!("{part:?} does not name a module")));
            }
        }
    }
    // `tracing` does not accept spaces.
    let filter = parts.join(",");
    EnvFilter::try_new(&filter).map_err(|error| invalid_level(text, &error.to_string()))?;
    let has_default = parts.iter().any(|part| is_level(part));
    Ok(if has_default { filter } else { format!("error,{filter}") })
}

/// Returns the filter in `RUST_LOG`, which overrides every file; `None` if it is not set.
#[allow(clippy::disallowed_methods, reason = "this is where the environment is read")]
pub(super) fn from_env() -> Option<Result<String, String>> {
    let text = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty())?;
    Some(filter(&text))
}

fn is_level(word: &str) -> bool {
    LEVELS.iter().any(|level| word.trim().eq_ignore_ascii_case(level))
}

fn invalid_level(text: &str, why: &str) -> String {
    format!("{text:?}: {why}; expected one of {}, or a list such as info,kube_fanout::reflect=debug", LEVELS.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_filter_part_without_level_is_refused() {
        for text in ["info", "WARN", "off", "info,kube_fanout::reflect=debug", "warn,kube_fanout=trace"] {
            assert_eq!(filter(text).as_deref(), Ok(text));
        }
        assert_eq!(filter("warn, kube_fanout=trace").as_deref(), Ok("warn,kube_fanout=trace"));
        assert_eq!(filter("kube_fanout=debug").as_deref(), Ok("error,kube_fanout=debug"), "errors are never hidden");
        assert_eq!(filter("kube_fanout[{peer}]=debug").as_deref(), Ok("error,kube_fanout[{peer}]=debug"));
        for (text, why) in [
            ("debugg", "\"debugg\" is not a level"),
            ("info,debugg", "\"debugg\" is not a level"),
            ("kube_fanout", "\"kube_fanout\" is not a level"),
            ("kube_fanout=debugg", "\"debugg\" is not a level"),
            ("info,=debug", "does not name a module"),
            ("", "empty value"),
            (" , ", "empty value"),
        ] {
            let error = filter(text).expect_err(text);
            assert!(error.starts_with(&format!("{text:?}: ")) && error.contains(why), "{error}");
            assert!(error.contains("off, error, warn, info, debug, trace"), "{error}");
        }
    }
}
